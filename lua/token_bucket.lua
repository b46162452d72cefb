-- Token bucket: takes the cost of a request from one bucket, or of as many of
-- several requests as it has tokens for; or from each of several buckets, whose
-- limits are the same and whose requests have nothing to do with each other.
--
-- KEYS     the buckets, hashes:
--            tokens      tokens there were at lastRefill, up to six decimals
--            lastRefill  microseconds since the epoch, by this server's clock
--            expires     milliseconds since the epoch: when the key goes
--            seen        lastRefill by the caller's clock, if ARGV[6] told it
-- ARGV[1]  capacity, in tokens
-- ARGV[2]  refill in tokens a second is the fraction ARGV[2] / ARGV[3]
-- ARGV[3]
-- ARGV[4]  cost, in tokens
-- ARGV[5]  time to live in milliseconds, not less than an empty bucket needs
--          to become full: a bucket that is gone counts as full
-- ARGV[6]  the caller's time, microseconds since the epoch, or 0; with it, a
--          leap of this server's clock refills for an hour at most. Of use to
--          buckets that take longer than that to become full; may be missing
-- ARGV[7]  and on: how many requests for each of the keys, unless all are 1
--
-- Reply: an integer. t >= 0: taken, t microtokens are left.
--        t < 0: denied, nothing was taken, -1 - t microtokens are there.
--        With ARGV[7] two integers: how many requests pass, and t, which is
--        below zero if none does.
--        Of several keys that for each, in one array.
--
-- All numbers are whole microtokens and microseconds, exact below 2^53. As a
-- token has as many microtokens as a second has microseconds, the refill
-- fraction also counts microtokens a microsecond. They are written as two
-- integers, which Lua formats in half the time that it takes for one float.
--
-- A key that is used again gets twice its time to live, so that few calls have
-- to renew it. "x - x % 1" is the floor of x and "x + -x % 1" its ceiling, both
-- without a call.

local HOUR = 3600000000

local call, pcall, tonumber = redis.call, redis.pcall, tonumber
local max, min = math.max, math.min
local format, sub = string.format, string.sub

local time = call('TIME')

local now = time[1] * 1000000 + time[2]
local full = ARGV[1] * 1000000
local cost = ARGV[4] * 1000000
local lifetime = tonumber(ARGV[5])

local num = tonumber(ARGV[2])
local den = tonumber(ARGV[3])

local seen = tonumber(ARGV[6] or 0)
local times = ARGV[7]

-- one that never becomes full is kept for at least half of its time to live
local never = num == 0 and lifetime * 500

local WRONGTYPE = { err = 'WRONGTYPE key does not hold the state of a limit' }

-- a key that has no fields: what another algorithm has kept, or version 0.4,
-- counts as gone; what is somebody else's stays. It may be that it could not be
-- read, and "failed" is why.
local function stranger(key, failed)
    local kind = call('TYPE', key).ok
    local state = kind == 'string' and call('GET', key)

    if kind == 'zset'
       or (state and (tonumber(state) or sub(state, 1, 7) == 'tokens '))
    then
        call('DEL', key)
    elseif kind == 'none' then
        return failed
    else
        return failed and kind == 'hash' and failed or WRONGTYPE
    end
end

-- when a key goes; one that could not be told has to be told by the next call
local function expire(key, ttl)
    if type(pcall('PEXPIRE', key, ttl)) == 'table' then
        call('HSET', key, 'expires', '0')
        call('PEXPIRE', key, ttl)
    end
end

-- how much of the time since the last refill was a leap of the clock: what the
-- caller's clock knows nothing of, beyond an hour; one that was further ahead
-- then than it is now can't tell
local function leap(key, elapsed)
    local then_seen = tonumber(call('HGET', key, 'seen'))
    local by_other = then_seen and seen - then_seen

    if by_other and by_other > -HOUR then
        return max(0, elapsed - max(0, by_other) - HOUR)
    end

    return 0
end

local function integer(n)
    local part = n % 1000000

    return format('%d%06d', (n - part) / 1000000, part)
end

local reply = {}
local n = 0

-- as written last: the same for all buckets that were full
local tokens_text, tokens_were, last_text, last_was, seen_text
local expires_text, ttl_text, ttl_was

for i = 1, #KEYS do
    local key = KEYS[i]
    local bucket = pcall('HMGET', key, 'tokens', 'lastRefill', 'expires')
    local tokens, last = tonumber(bucket[1]), tonumber(bucket[2])
    local expires = 0
    local ttl = lifetime
    local repair = false
    local failed

    if tokens and last then
        local elapsed = now - last

        expires = tonumber(bucket[3]) or 0
        ttl = 2 * ttl

        tokens = tokens * 1000000 + 0.5
        tokens = tokens - tokens % 1

        -- should somebody else have written that, or "nan"
        tokens = tokens >= 0 and tokens or 0
        expires = expires >= 0 and expires or 0

        if elapsed > HOUR and seen > 0 then
            elapsed = elapsed - leap(key, elapsed)
            last = now - elapsed
        end

        if elapsed > 0 then
            local refill = elapsed * num / den

            if tokens + refill >= full then
                -- a full bucket saves up no time
                tokens = full
                last = now
            elseif refill >= 1 then
                -- time that made no whole microtoken is left to the next call
                refill = refill - refill % 1
                tokens = tokens + refill
                refill = refill * den / num
                last = last + refill + -refill % 1
                last = last < now and last or now
            end
        else
            -- the clock stepped back: nothing is refilled, it goes on from here
            repair = elapsed ~= 0
            last = now
            tokens = min(tokens, full)
        end
    else
        if bucket.err
           or (not (bucket[1] or bucket[2]) and call('EXISTS', key) == 1)
        then
            failed = stranger(key, bucket.err and bucket)
        end

        tokens = full
        last = now
    end

    local passed = 0

    if tokens >= cost and not failed then
        passed = 1

        if times then
            passed = tokens / cost
            passed = min(tonumber(ARGV[6 + i]), passed - passed % 1)
        end

        tokens = tokens - passed * cost
    end

    -- a denied call changes nothing, unless the clock has to be set right: else
    -- the bucket would stand still until the old time comes round again
    local write = passed > 0 or repair

    -- a bucket must not be forgotten, and so be full, before it would be; nor
    -- may one that denies, if its limit has become slower or larger
    local renew = (write or tokens < full)
                  and (expires - 1000) * 1000
                      < now + (never or (full - tokens) * den / num)

    if write then
        if tokens ~= tokens_were then
            local part = tokens % 1000000

            tokens_text = part == 0 and format('%d', tokens / 1000000)
                          or format('%d.%06d', (tokens - part) / 1000000, part)
            tokens_were = tokens
        end

        if last ~= last_was then
            last_text = integer(last)
            seen_text = seen > 0 and integer(seen - (now - last))
            last_was = last
        end

    end

    if renew then
        if ttl ~= ttl_was then
            expires_text = format('%.0f', now / 1000 + ttl)
            ttl_text = format('%.0f', ttl)
            ttl_was = ttl
        end

        if not write then
            call('HSET', key, 'expires', expires_text)
        elseif seen_text then
            call('HSET', key, 'tokens', tokens_text, 'lastRefill', last_text,
                 'expires', expires_text, 'seen', seen_text)
        else
            call('HSET', key, 'tokens', tokens_text, 'lastRefill', last_text,
                 'expires', expires_text)
        end

        expire(key, ttl_text)
    elseif write and seen_text then
        call('HSET', key, 'tokens', tokens_text, 'lastRefill', last_text,
             'seen', seen_text)
    elseif write then
        call('HSET', key, 'tokens', tokens_text, 'lastRefill', last_text)
    end

    if failed then
        if #KEYS == 1 then
            return failed
        end

        tokens = failed
    elseif passed == 0 then
        tokens = -1 - tokens
    end

    if times then
        n = n + 1
        reply[n] = passed
    end

    n = n + 1
    reply[n] = tokens
end

if n == 1 then
    return reply[1]
end

return reply
