-- leftover: a key that holds something other than the state of its algorithm.
--
-- Gives    WRONGTYPE  the message for a key that holds no state of a limit
--          is_state(text)  whether a string is the state of a limit
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

-- of gcra, of a window that counts by periods, or a bucket of version 0.4
local function is_state(text)
    return tonumber(text)
           or #text >= 38 and string.find(text, '^%d+:%d+:[%d:]+$')
           or string.sub(text, 1, 7) == 'tokens '
end

local function clear_leftover(key, own, failed, keep)
    local kind = call('TYPE', key).ok

    if kind == 'none' or (kind == own and failed) then
        return failed
    end

    if kind == 'string' then
        if not is_state(call('GET', key)) then
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
