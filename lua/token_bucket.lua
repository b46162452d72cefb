-- Token bucket: takes the cost of a request from a bucket. If several requests
-- want the same bucket, it takes the cost of as many of them as there are
-- tokens for. It may serve several buckets in one call, if their limits are
-- the same and their requests are independent of each other.
--
-- KEYS     the buckets, hashes:
--            tokens      the tokens at lastRefill, up to six decimals
--            lastRefill  microseconds since the epoch, by this server's clock
--            expires     milliseconds since the epoch: when the key expires
--            seen        lastRefill by the caller's clock, if ARGV[6] has it
-- ARGV[1]  capacity, in tokens
-- ARGV[2]  refill in tokens a second is the fraction ARGV[2] / ARGV[3]
-- ARGV[3]
-- ARGV[4]  cost, in tokens
-- ARGV[5]  time to live in milliseconds, usually the time that an empty bucket
--          needs to become full: a missing bucket counts as full. A bucket that
--          needs longer than that gets the time that it needs
-- ARGV[6]  the caller's time, microseconds since the epoch, or 0; with it, a
--          leap of this server's clock refills for an hour at most. It is for
--          buckets that take longer than an hour to become full; optional
-- ARGV[7]  and on: the number of requests for each key, unless all are 1
--
-- Reply: an integer. t >= 0: taken, t microtokens are left.
--        t < 0: denied, nothing was taken, -1 - t microtokens are there.
--        With ARGV[7] two integers: how many requests pass, and t, which is
--        below zero if none does.
--        Several keys: the same for each of them, in one array.
--
-- All numbers are whole microtokens and microseconds, exact below 2^53. As a
-- token has as many microtokens as a second has microseconds, the refill
-- fraction also counts microtokens a microsecond.
--
-- A key that is used again gets twice its time to live, so that few calls need
-- to renew it. "x - x % 1" is the floor of x and "x + -x % 1" its ceiling,
-- both without a call.

local call, pcall, tonumber = redis.call, redis.pcall, tonumber
local max, min, format = math.max, math.min, string.format

local full = ARGV[1] * 1000000
local cost = ARGV[4] * 1000000
local lifetime = tonumber(ARGV[5])

local num = tonumber(ARGV[2])
local den = tonumber(ARGV[3])

local seen = tonumber(ARGV[6] or 0)
local times = ARGV[7]

-- a bucket that never refills is kept for at least half of its time to live
local never = num == 0 and lifetime * 500

-- no key lives longer: a hundred years, in milliseconds
local LONGEST = 3155760000000

--@ include clock
--@ include leap
--@ include integer
--@ include tokens
--@ include leftover

-- Sets when a key expires. If this fails, "expires" makes the next call try
-- again.
local function expire(key, ttl)
    if type(pcall('PEXPIRE', key, ttl)) == 'table' then
        call('HSET', key, 'expires', '0')
        call('PEXPIRE', key, ttl)
    end
end

local reply = {}
local length = 0

-- as written last: the same for all buckets that were full
local left_text, left_was, last_text, last_was, seen_text
local expires_text, ttl_text, ttl_was

for i = 1, #KEYS do
    local key = KEYS[i]
    local bucket = pcall('HMGET', key, 'tokens', 'lastRefill', 'expires')
    local tokens, last = tonumber(bucket[1]), tonumber(bucket[2])
    local expires = 0
    local again = 1
    local repair = false
    local failed

    if tokens and last then
        local elapsed = now - last

        expires = tonumber(bucket[3]) or 0
        again = 2

        tokens = tokens * 1000000 + 0.5
        tokens = tokens - tokens % 1

        -- another program may have written a negative number or "nan"
        tokens = tokens >= 0 and tokens or 0
        expires = expires >= 0 and expires or 0

        if elapsed > HOUR and seen > 0 then
            local then_seen = tonumber(call('HGET', key, 'seen'))

            elapsed = elapsed - leap(elapsed, then_seen and seen - then_seen)
            last = now - elapsed
        end

        if elapsed > 0 then
            local refill = elapsed * num / den

            if tokens + refill >= full then
                -- a full bucket saves no time
                tokens = full
                last = now
            elseif refill >= 1 then
                -- time that made no whole microtoken is kept for the next call
                refill = refill - refill % 1
                tokens = tokens + refill
                refill = refill * den / num
                last = last + refill + -refill % 1
                last = last < now and last or now
            end
        else
            -- the clock stepped back: nothing is refilled, time starts here
            repair = elapsed ~= 0
            last = now
            tokens = min(tokens, full)
        end
    else
        if bucket.err
           or (not (bucket[1] or bucket[2]) and call('EXISTS', key) == 1)
        then
            failed = clear_leftover(key, 'hash', bucket.err and bucket)
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

    -- a denied call changes nothing, unless the clock must be corrected:
    -- otherwise the bucket would stand still until the old time is reached
    -- again
    local write = passed > 0 or repair

    -- A missing bucket counts as full, so a key must not expire before its
    -- bucket is full. This also holds for a bucket that denies, if its limit
    -- has become slower or larger.
    local needed = never or (full - tokens) * den / num
    local renew = (write or tokens < full)
                  and (expires - 1000) * 1000 < now + needed

    if write then
        if tokens ~= left_was then
            left_text = tokens_text(tokens)
            left_was = tokens
        end

        if last ~= last_was then
            last_text = integer(last)
            seen_text = seen > 0 and integer(seen - (now - last))
            last_was = last
        end
    end

    if renew then
        needed = needed / 1000
        needed = min(needed - needed % 1 + 1000, LONGEST)

        local ttl = again * max(lifetime, needed)

        if ttl ~= ttl_was then
            expires_text = format('%.0f', now / 1000 + ttl)
            ttl_text = format('%.0f', ttl)
            ttl_was = ttl
        end

        if not write then
            call('HSET', key, 'expires', expires_text)
        elseif seen_text then
            call('HSET', key, 'tokens', left_text, 'lastRefill', last_text,
                 'expires', expires_text, 'seen', seen_text)
        else
            call('HSET', key, 'tokens', left_text, 'lastRefill', last_text,
                 'expires', expires_text)
        end

        expire(key, ttl_text)
    elseif write and seen_text then
        call('HSET', key, 'tokens', left_text, 'lastRefill', last_text,
             'seen', seen_text)
    elseif write then
        call('HSET', key, 'tokens', left_text, 'lastRefill', last_text)
    end

    local left = tokens

    --@ include answer
end

return length == 1 and reply[1] or reply
