-- Sliding window counter: counts what was taken in the current period and in
-- the one before, and of the latter the part that a window which ends now still
-- covers.
--
-- KEYS     strings, see "counter" below. There may be several different keys,
--          if their limits are the same and their requests are independent of
--          each other
-- ARGV[1]  the limit of a window
-- ARGV[2]  cost of a request
-- ARGV[3]  length of the window in microseconds
-- ARGV[4]  ignored
-- ARGV[5]  and on: the number of requests for each key, unless all are 1
--
-- Reply: four integers.
--        t >= 0: taken, and t is left; t < 0: denied, and -1 - t is left
--        microseconds until nothing of the window counts
--        microseconds until the cost fits, 0 if it does after the request
--        when the current period began, which a refund has to say:
--        milliseconds since the epoch
--        With ARGV[5], how many requests pass is before these, and t is below
--        zero if none does.
--        Several keys: the same for each of them, in one array. An error takes
--        the place of t.

local call, tonumber = redis.call, tonumber
local unpack = table.unpack or unpack
local floor, max, min = math.floor, math.max, math.min
local format = string.format

local limit = tonumber(ARGV[1])
local cost = tonumber(ARGV[2])
local window = tonumber(ARGV[3])
local times = ARGV[5]

--@ include clock
--@ include leftover
--@ include digits
--@ include counter
--@ include counter_now
--@ include lives

local states = call('MGET', unpack(KEYS))
local reply = {}
local size = 0

for i = 1, #KEYS do
    local key, state = KEYS[i], states[i]
    local wanted = times and tonumber(ARGV[4 + i]) or 1
    local from, to, before, count = counter_parse(state)
    local failed

    if state and not from and not is_state(state) then
        failed = { err = WRONGTYPE }
    end

    local start, previous, used, kept
        = counter_now(window, from, to, before, count)
    local finish = start + window
    local left = limit - used

    if previous > 0 then
        left = left - counter_part(window, previous, min(window, finish - now))
    end

    local passed = 0

    left = max(0, left)

    if left >= cost and not failed then
        passed = wanted == 1 and 1 or min(wanted, floor(left / cost))
        left = left - passed * cost
    end

    -- A denied call changes nothing, but a count that was moved to another
    -- period must stay there.
    if passed > 0 or (used > 0 and not kept) then
        used = used + passed * cost

        if kept then
            call('SETRANGE', key, #state - 10, digits(used))
        else
            local text = counter_text(start, finish, previous)
                         .. digits(used)
            local ttl = lives(key, window, finish + window - now)

            if state then
                call('SET', key, text, 'PX', ttl)
            else
                -- MGET has seen no key, or one that is not a string
                while not failed
                      and not call('SET', key, text, 'PX', ttl, 'NX')
                do
                    failed = clear_leftover(key, 'string', { err = WRONGTYPE })
                end
            end
        end
    end

    if failed and #KEYS == 1 then
        return failed
    end

    if times then
        size = size + 1
        reply[size] = failed and 0 or passed
    end

    reply[size + 1] = failed or (passed > 0 and left or -1 - left)
    reply[size + 2], reply[size + 3]
        = counter_times(window, limit - cost, previous, used, finish)
    reply[size + 4] = start / 1000
    size = size + 4
end

return reply
