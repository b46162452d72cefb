-- Fixed window: counts what was taken in the current period, and starts anew
-- with the next one.
--
-- KEYS     strings, see "fixed" below. There may be several different keys, if
--          their limits are the same and their requests are independent of
--          each other
-- ARGV[1]  the limit of a period
-- ARGV[2]  cost of a request
-- ARGV[3]  length of a period in microseconds, or 0 for months
-- ARGV[4]  seconds to add to the time, see "period" below
-- ARGV[5]  and on: the number of requests for each key, unless all are 1
--
-- Reply: three integers.
--        t >= 0: taken, and t is left; t < 0: denied, and -1 - t is left
--        microseconds until the period ends
--        when it began, which a refund has to say: milliseconds since the epoch
--        With ARGV[5], how many requests pass is before these, and t is below
--        zero if none does.
--        Several keys: the same for each of them, in one array. An error takes
--        the place of t.

local call, tonumber = redis.call, tonumber
local unpack = table.unpack or unpack
local floor, max, min = math.floor, math.max, math.min
local format, sub = string.format, string.sub

local limit = tonumber(ARGV[1])
local cost = tonumber(ARGV[2])
local window, offset = tonumber(ARGV[3]), tonumber(ARGV[4])
local times = ARGV[5]

--@ include clock
--@ include leftover
--@ include period
--@ include digits
--@ include fixed
--@ include fixed_now
--@ include lives

local states = call('MGET', unpack(KEYS))
local reply = {}
local size = 0

-- the period of nearly all states
local this_start, this_finish = period(window, offset, now)
local this_text = fixed_text(this_start, this_finish)

for i = 1, #KEYS do
    local key, state = KEYS[i], states[i]
    local wanted = times and tonumber(ARGV[4 + i]) or 1
    local start, finish, text = this_start, this_finish, this_text
    local used, kept, failed = 0, false, nil

    if state then
        if #state == 38 and sub(state, 1, FIXED_COUNT) == this_text then
            used = tonumber(sub(state, FIXED_COUNT + 1))
            kept = true
        else
            local from, to, count = fixed_parse(state)

            start, finish, used, kept
                = fixed_now(window, offset, from, to, count)
            text = fixed_text(start, finish)
        end

        if not used or not (kept or is_state(state)) then
            failed = { err = WRONGTYPE }
            used = 0
        end
    end

    local left = max(0, limit - used)
    local passed = 0

    if left >= cost and not failed then
        passed = wanted == 1 and 1 or min(wanted, floor(left / cost))
        left = left - passed * cost
    end

    -- A denied call changes nothing, but a count that was moved to another
    -- period must stay there.
    if passed > 0 or (used > 0 and not kept) then
        local count = digits(used + passed * cost)

        if kept then
            call('SETRANGE', key, FIXED_COUNT, count)
        elseif state then
            call('SET', key, text .. count,
                 'PX', lives(key, finish - start, finish - now))
        else
            local ttl = lives(key, finish - start, finish - now)

            -- MGET has seen no key, or one that is not a string
            while not failed
                  and not call('SET', key, text .. count,
                               'PX', ttl, 'NX')
            do
                failed = clear_leftover(key, 'string', { err = WRONGTYPE })
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
    reply[size + 2] = finish - now
    reply[size + 3] = start / 1000
    size = size + 3
end

return reply
