-- Token bucket: takes the cost of a request from one bucket, or of as many of
-- several requests as it has tokens for; or from each of several buckets, whose
-- limits are the same and whose requests have nothing to do with each other.
--
-- KEYS     the buckets, hashes:
--            tokens      tokens there were at lastRefill, six decimals
--            lastRefill  microseconds since the epoch, by this server's clock
-- ARGV[1]  capacity, in tokens
-- ARGV[2]  refill in tokens a second is the fraction ARGV[2] / ARGV[3]
-- ARGV[3]
-- ARGV[4]  cost, in tokens
-- ARGV[5]  time to live in milliseconds, not less than an empty bucket needs
--          to become full: a bucket that is gone counts as full
-- ARGV[6]  how many requests for a single bucket, if they are several
--
-- Reply: an integer. t >= 0: taken, t microtokens are left.
--        t < 0: denied, nothing was taken, -1 - t microtokens are there.
--        Of several buckets one such integer each.
--        Of several requests two integers: how many of them pass, and t, which
--        is below zero if none does.
--
-- All numbers are whole microtokens and microseconds, exact below 2^53. As a
-- token has as many microtokens as a second has microseconds, the refill
-- fraction also counts microtokens a microsecond. They are written as two
-- integers, which Lua formats in half the time that it takes for one float.

local call, pcall = redis.call, redis.pcall
local floor, format = math.floor, string.format

local time = call('TIME')

local now = time[1] * 1000000 + time[2]
local full = ARGV[1] * 1000000
local cost = ARGV[4] * 1000000

local num = tonumber(ARGV[2])
local den = tonumber(ARGV[3])

local ttl = ARGV[5]
local times = 1

if ARGV[6] then
    times = tonumber(ARGV[6])
end

local passed

local function take(key)
    local bucket = pcall('HMGET', key, 'tokens', 'lastRefill')

    if bucket.err then
        local kind = call('TYPE', key).ok

        if kind ~= 'zset'
           and not (kind == 'string' and tonumber(call('GET', key)))
        then
            return bucket
        end

        -- another algorithm has kept the limit before: that counts as gone
        call('DEL', key)
        bucket = {}
    end

    local tokens = tonumber(bucket[1])
    local last = tonumber(bucket[2])
    local repair = false

    if tokens and last then
        local elapsed = now - last

        -- not below zero, nor "nan", should somebody else have written that
        tokens = math.max(0, floor(tokens * 1000000 + 0.5))

        if elapsed > 0 then
            local refill = floor(elapsed * num / den)

            -- time that made no whole microtoken yet is left to the next call
            if refill > 0 then
                tokens = tokens + refill
                last = math.min(now, last + math.ceil(refill * den / num))
            end
        else
            -- the clock stepped back: nothing is refilled, it goes on from here
            repair = elapsed ~= 0
            last = now
        end

        -- a full bucket saves up no time
        if tokens >= full then
            tokens = full
            last = now
        end
    else
        tokens = full
        last = now
    end

    passed = 0

    if tokens >= cost then
        passed = times == 1 and 1 or math.min(times, floor(tokens / cost))
        tokens = tokens - passed * cost
    end

    -- a denied call changes nothing, unless the clock has to be set right: else
    -- the bucket would stand still until the old time comes round again
    if passed > 0 or repair then
        call('HSET', key,
             'tokens', format('%d.%06d', floor(tokens / 1000000),
                              tokens % 1000000),
             'lastRefill', format('%d%06d', floor(last / 1000000),
                                  last % 1000000))
        call('PEXPIRE', key, ttl)

    elseif call('PTTL', key) * num < (full - tokens) * den / 1000 then
        -- the limit has become slower or larger since the last take: the
        -- bucket must not be forgotten, and so be full, before it would be
        call('PEXPIRE', key, ttl)
    end

    if passed == 0 then
        return -1 - tokens
    end

    return tokens
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
