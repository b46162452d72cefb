-- Generic cell rate algorithm: the limits of a token bucket, kept as a single
-- integer, the time at which the bucket would be full.
--
-- KEYS     strings: that time, in ticks; several ones, if their limits are the
--          same and their requests have nothing to do with each other
-- ARGV[1]  ticks that an empty bucket needs to become full
-- ARGV[2]  ticks that the cost of a request is worth
-- ARGV[3]  time to live in milliseconds, not less than ARGV[1]
-- ARGV[4]  1 if other requests for a key may have another ARGV[1], else 0
-- ARGV[5]  and on: how many requests for each of the keys, unless all are 1
--
-- A tick is a sixteenth of a microsecond by this server's clock; ticks count
-- from 1700000000 seconds after the epoch, and stay exact below 2^53.
--
-- Reply: an integer. t >= 0: taken, tokens worth t ticks are left.
--        t < 0: denied, nothing was taken, tokens worth -1 - t ticks are there.
--        With ARGV[5] two integers: how many requests pass, and t, which is
--        below zero if none does.
--        Of several keys that for each, in one array.

local call, pcall, tonumber = redis.call, redis.pcall, tonumber
local floor, format = math.floor, string.format

local time = call('TIME')

local now = (time[1] - 1700000000) * 16000000 + time[2] * 16
local burst = tonumber(ARGV[1])
local cost = tonumber(ARGV[2])
local ttl = ARGV[3]
local varies = ARGV[4] == '1'
local times = ARGV[5]

local reply = {}
local n = 0

for i = 1, #KEYS do
    local key = KEYS[i]
    local wanted = times and tonumber(ARGV[4 + i]) or 1
    local full_at = pcall('GET', key)
    local failed

    if type(full_at) == 'table' then
        local kind = call('TYPE', key).ok

        -- what another algorithm has kept counts as gone
        if kind == 'hash' or kind == 'zset' then
            call('DEL', key)
        elseif #KEYS == 1 then
            return full_at
        else
            failed = full_at
        end

        full_at = false
    end

    local lacks = math.max(0, (tonumber(full_at) or now) - now)

    -- more than all of it: the clock stepped back, or the limit was larger; it
    -- has to be set right, or nobody would pass until that time has come; but
    -- not if it lacks to one whose limit is larger now
    local repair = false

    if lacks > burst then
        lacks = burst
        repair = not varies
    end

    local passed = 0

    if burst - lacks >= cost and not failed then
        passed = wanted == 1 and 1
                 or math.min(wanted, floor((burst - lacks) / cost))
        lacks = lacks + passed * cost
    end

    -- else a denied call changes nothing
    if passed > 0 or repair then
        local at = now + lacks
        local half = floor(at / 100000000)

        -- in two halves, as a "%d" may have but 32 bits; and "%.0f" is slow
        if half > 0 then
            at = format('%d%08d', half, at - half * 100000000)
        else
            at = format('%.0f', at)
        end

        call('SET', key, at, 'PX', ttl)
    end

    if times then
        n = n + 1
        reply[n] = passed
    end

    n = n + 1
    reply[n] = passed > 0 and burst - lacks or failed or -1 - (burst - lacks)
end

if n == 1 then
    return reply[1]
end

return reply
