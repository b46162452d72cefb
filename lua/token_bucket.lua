-- Token bucket: takes the cost of a request from one bucket, or of as many of
-- several requests as it has tokens for; or from each of several buckets, whose
-- limits are the same and whose requests have nothing to do with each other.
--
-- KEYS     the buckets, hashes:
--            tokens      tokens there were at lastRefill, six decimals
--            lastRefill  microseconds since the epoch, by this server's clock
--            expires     milliseconds since the epoch: when the key goes
-- ARGV[1]  capacity, in tokens
-- ARGV[2]  refill in tokens a second is the fraction ARGV[2] / ARGV[3]
-- ARGV[3]
-- ARGV[4]  cost, in tokens
-- ARGV[5]  time to live in milliseconds, not less than an empty bucket needs
--          to become full: a bucket that is gone counts as full
-- ARGV[6]  and on: how many requests for each of the keys, unless all are 1
--
-- Reply: an integer. t >= 0: taken, t microtokens are left.
--        t < 0: denied, nothing was taken, -1 - t microtokens are there.
--        With ARGV[6] two integers: how many requests pass, and t, which is
--        below zero if none does.
--        Of several keys that for each, in one array.
--
-- All numbers are whole microtokens and microseconds, exact below 2^53. As a
-- token has as many microtokens as a second has microseconds, the refill
-- fraction also counts microtokens a microsecond. They are written as two
-- integers, which Lua formats in half the time that it takes for one float.
--
-- A key that is used again gets twice its time to live, so that few calls have
-- to renew it.

local call, pcall, tonumber = redis.call, redis.pcall, tonumber
local floor, format = math.floor, string.format

local time = call('TIME')

local now = time[1] * 1000000 + time[2]
local full = ARGV[1] * 1000000
local cost = ARGV[4] * 1000000

local num = tonumber(ARGV[2])
local den = tonumber(ARGV[3])

local times = ARGV[6]

local reply = {}
local n = 0

-- as written last: the same for all buckets that were full
local tokens_were, tokens_text, last_was, last_text

for i = 1, #KEYS do
    local key = KEYS[i]
    local wanted = times and tonumber(ARGV[5 + i]) or 1
    local bucket = pcall('HMGET', key, 'tokens', 'lastRefill', 'expires')
    local failed = bucket.err and bucket

    if failed then
        local kind = call('TYPE', key).ok

        -- what another algorithm has kept counts as gone
        if kind == 'zset'
           or (kind == 'string' and tonumber(call('GET', key)))
        then
            call('DEL', key)
            failed = nil
        elseif #KEYS == 1 then
            return failed
        end
    end

    local tokens, last = tonumber(bucket[1]), tonumber(bucket[2])
    local expires = math.max(0, tonumber(bucket[3]) or 0)
    local ttl = ARGV[5] * 1
    local repair = false

    if tokens and last then
        local elapsed = now - last

        -- not below zero, nor "nan", should somebody else have written that
        tokens = math.max(0, floor(tokens * 1000000 + 0.5))
        ttl = 2 * ttl

        if elapsed > 0 then
            local refill = elapsed * num / den

            if tokens + refill >= full then
                -- a full bucket saves up no time
                tokens = full
                last = now
            elseif refill >= 1 then
                -- time that made no whole microtoken is left to the next call
                refill = floor(refill)
                tokens = tokens + refill
                last = math.min(now, last + math.ceil(refill * den / num))
            end
        else
            -- the clock stepped back: nothing is refilled, it goes on from here
            repair = elapsed ~= 0
            last = now
            tokens = math.min(tokens, full)
        end
    else
        tokens = full
        last = now
        expires = 0
    end

    local passed = 0

    if tokens >= cost and not failed then
        passed = wanted == 1 and 1 or math.min(wanted, floor(tokens / cost))
        tokens = tokens - passed * cost
    end

    -- a denied call changes nothing, unless the clock has to be set right: else
    -- the bucket would stand still until the old time comes round again
    local write = passed > 0 or repair

    -- a bucket must not be forgotten, and so be full, before it would be; nor
    -- may one that denies, if its limit has become slower or larger
    local renew = (write or tokens < full)
                  and (expires - 1000) * 1000
                      < now + (full - tokens) * den / num

    if write then
        if tokens ~= tokens_were then
            local whole = floor(tokens / 1000000)

            tokens_text = format('%d.%06d', whole, tokens - whole * 1000000)
            tokens_were = tokens
        end

        if last ~= last_was then
            local whole = floor(last / 1000000)

            last_text = format('%d%06d', whole, last - whole * 1000000)
            last_was = last
        end

        if not renew then
            call('HSET', key, 'tokens', tokens_text, 'lastRefill', last_text)
        end
    end

    if renew then
        local at = format('%.0f', now / 1000 + ttl)

        if write then
            call('HSET', key, 'tokens', tokens_text, 'lastRefill', last_text,
                 'expires', at)
        else
            call('HSET', key, 'expires', at)
        end

        at = format('%.0f', ttl)

        -- it may not be allowed to: then the next call has to try again
        if type(pcall('PEXPIRE', key, at)) == 'table' then
            call('HSET', key, 'expires', 0)
            call('PEXPIRE', key, at)
        end
    end

    if passed == 0 then
        tokens = failed or -1 - tokens
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
