-- leftover: a key that holds something other than the state of its algorithm.
--
-- Gives    WRONGTYPE  the message for a key that holds no state of a limit
--          clear_leftover(key, own, failed, keep)
--                     nil if the key is free now, or else an error
-- Needs    call
--
-- State of another algorithm or of version 0.4 is ignored and deleted, unless
-- "keep" says that nothing may be changed. So a limit whose algorithm was
-- changed neither fails nor blocks others. Data of other programs is left
-- alone. "own" is the type of the algorithm's keys. "failed" is the error, if
-- any, of reading the key; it is returned if the key has the type "own".

local WRONGTYPE = 'WRONGTYPE key does not hold the state of a limit'

local function clear_leftover(key, own, failed, keep)
    local kind = call('TYPE', key).ok

    if kind == 'none' or (kind == own and failed) then
        return failed
    end

    if kind == 'string' then
        local state = call('GET', key)

        -- of gcra, or a bucket of version 0.4
        if not tonumber(state) and string.sub(state, 1, 7) ~= 'tokens ' then
            return { err = WRONGTYPE }
        end

    elseif kind == 'hash' then
        if call('HEXISTS', key, 'tokens') == 0
           and call('HEXISTS', key, 'lastRefill') == 0
        then
            return { err = WRONGTYPE }
        end

    elseif kind ~= 'zset' then
        return { err = WRONGTYPE }
    end

    if not keep then
        call('DEL', key)
    end
end
