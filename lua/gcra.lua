-- Generic cell rate algorithm: the limits of a token bucket, kept as a single
-- integer, the time at which the bucket would be full.
--
-- KEYS     strings: that time, in ticks; several ones, if their limits are the
--          same and their requests have nothing to do with each other
-- ARGV[1]  ticks that an empty bucket needs to become full
-- ARGV[2]  ticks that the cost of a request is worth
-- ARGV[3]  how many requests for a single key, if they are several
-- ARGV[4]  there, if other requests for the key may have another ARGV[1]
--
-- A tick is a sixteenth of a microsecond by this server's clock; ticks count
-- from 1700000000 seconds after the epoch, and stay exact below 2^53.
--
-- Reply: an integer. t >= 0: taken, tokens worth t ticks are left.
--        t < 0: denied, nothing was taken, tokens worth -1 - t ticks are there.
--        Of several keys one such integer each.
--        Of several requests two integers: how many of them pass, and t, which
--        is below zero if none does.

local call, pcall = redis.call, redis.pcall
local floor, format = math.floor, string.format

local time = call('TIME')

local now = (time[1] - 1700000000) * 16000000 + time[2] * 16
local burst = tonumber(ARGV[1])
local cost = tonumber(ARGV[2])

local times = 1

if ARGV[3] then
    times = tonumber(ARGV[3])
end

local passed

-- in two halves, as a "%d" may have but 32 bits, and "%.0f" takes its time
local function integer(n)
    if n < 100000000 then
        return format('%.0f', n)
    end

    return format('%d%08d', floor(n / 100000000), n % 100000000)
end

local function take(key)
    local full_at = pcall('GET', key)

    if type(full_at) == 'table' then
        local kind = call('TYPE', key).ok

        if kind ~= 'hash' and kind ~= 'zset' then
            return full_at
        end

        -- another algorithm has kept the limit before: that counts as gone
        call('DEL', key)
        full_at = false
    end

    local lacks = math.max(0, (tonumber(full_at) or now) - now)

    -- more than all of it: the clock stepped back, or the limit was larger; it
    -- has to be set right, or nobody would pass until that time has come; but
    -- not if it lacks to one whose limit is larger now
    local repair = false

    if lacks > burst then
        lacks = burst
        repair = not ARGV[4]
    end

    passed = 0

    if burst - lacks >= cost then
        passed = times == 1 and 1
                 or math.min(times, floor((burst - lacks) / cost))
        lacks = lacks + passed * cost
    end

    -- else a denied call changes nothing
    if passed > 0 or repair then
        call('SET', key, integer(now + lacks),
             'PX', integer(math.ceil(lacks / 16000) + 1000))
    end

    if passed == 0 then
        return -1 - (burst - lacks)
    end

    return burst - lacks
end

if #KEYS == 1 then
    local left = take(KEYS[1])

    if times == 1 or type(left) == 'table' then
        return left
    end

    return { passed, left }
end

local reply = {}

for i = 1, #KEYS do
    reply[i] = take(KEYS[i])
end

return reply
