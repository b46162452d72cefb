-- leftover: a key that holds something other than the state of its algorithm.
--
-- Gives    WRONGTYPE  the message for a key that holds no state of a limit
--          clear_leftover(key, own, failed, keep)
--                     nil if the key is free now, or else an error
-- Needs    call
--
-- What another algorithm or version 0.4 has left counts as gone and is deleted,
-- unless "keep" says that nothing may be changed. So a limit whose algorithm
-- was changed neither fails nor stops others. What is somebody else's stays.
-- "own" is the type of keys of the algorithm, and "failed" the error, if any,
-- with which the key could not be read: it stands if the key has that type.

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
