-- Token bucket: takes the cost of a request from one bucket, or of as many of
-- several requests as it has tokens for; or from each of several buckets, whose
-- limits are the same and whose requests have nothing to do with each other.
--
-- KEYS     the buckets, no key twice; strings of fields, each in its columns:
--              "tokens         99.000000 lastRefill 1763400000123456"
--              " expires 1763400012345"
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
-- A hash would name these fields as well, but reading and writing it takes
-- Redis half as long again: strings of several keys are read by one command.
--
-- A key that is used again gets twice its time to live, so that few calls have
-- to renew it.

local call, tonumber = redis.call, tonumber
local unpack = table.unpack or unpack
local floor, max, min = math.floor, math.max, math.min
local format, sub = string.format, string.sub

local time = call('TIME')

local now = time[1] * 1000000 + time[2]
local full = ARGV[1] * 1000000
local cost = ARGV[4] * 1000000
local lifetime = tonumber(ARGV[5])

local num = tonumber(ARGV[2])
local den = tonumber(ARGV[3])

local times = ARGV[6]

local WRONGTYPE = { err = 'WRONGTYPE key does not hold the state of a limit' }

-- a new key, or one that is no string: what another algorithm has kept counts
-- as gone, what is somebody else's stays
local function create(key, text, ttl)
    while not call('SET', key, text, 'PX', ttl, 'NX') do
        local kind = call('TYPE', key).ok

        if kind ~= 'zset' and kind ~= 'hash' then
            return WRONGTYPE
        end

        call('DEL', key)
    end
end

local states = call('MGET', unpack(KEYS))
local reply = {}
local n = 0

-- as written last: the same for all buckets that were full, and for most keys
local text, tokens_were, last_was
local expires_text, ttl_text, ttl_was

for i = 1, #KEYS do
    local key, state = KEYS[i], states[i]
    local wanted = times and tonumber(ARGV[5 + i]) or 1
    local own = state and sub(state, 1, 7) == 'tokens '
    local tokens = own and tonumber(sub(state, 8, 24))
    local last = own and tonumber(sub(state, 37, 52))
    local expires = max(0, own and tonumber(sub(state, 62, 74)) or 0)
    local ttl = lifetime
    local repair = false
    local failed

    if tokens and last then
        local elapsed = now - last

        -- not below zero, nor "nan", should somebody else have written that
        tokens = max(0, floor(tokens * 1000000 + 0.5))
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
                last = min(now, last + math.ceil(refill * den / num))
            end
        else
            -- the clock stepped back: nothing is refilled, it goes on from here
            repair = elapsed ~= 0
            last = now
            tokens = min(tokens, full)
        end
    else
        -- what another algorithm has kept counts as gone
        if state and not own and not tonumber(state) then
            failed = WRONGTYPE
        end

        tokens = full
        last = now
        expires = 0
    end

    local passed = 0

    if tokens >= cost and not failed then
        passed = wanted == 1 and 1 or min(wanted, floor(tokens / cost))
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

    if write and (tokens ~= tokens_were or last ~= last_was) then
        local whole, seconds = floor(tokens / 1000000), floor(last / 1000000)

        text = format('tokens %10d.%06d lastRefill %10d%06d',
                      whole, tokens - whole * 1000000,
                      seconds, last - seconds * 1000000)
        tokens_were = tokens
        last_was = last
    end

    if renew then
        if ttl ~= ttl_was then
            expires_text = format(' expires %13.0f', now / 1000 + ttl)
            ttl_text = format('%.0f', ttl)
            ttl_was = ttl
        end

        if not write then
            call('PEXPIRE', key, ttl_text)
            call('SETRANGE', key, '52', expires_text)
        elseif state then
            call('SET', key, text .. expires_text, 'PX', ttl_text)
        else
            failed = create(key, text .. expires_text, ttl_text)
        end
    elseif write then
        call('SETRANGE', key, '0', text)
    end

    if failed then
        if #KEYS == 1 then
            return failed
        end

        passed = 0
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
