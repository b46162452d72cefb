-- All limits of a request that live here: takes its cost from every one of
-- them, or, if one denies, from none. Of a single limit it may take the cost of
-- as many of several requests as fit. Or that for several requests in turn,
-- some of whose limits are the same.
--
-- KEYS     one key a limit, no key twice
-- ARGV[1]  "take", or "peek": look at the state, change nothing
-- ARGV[2]  whose time counts: "redis" or "nginx"
-- ARGV[3]  nginx's time, microseconds since the epoch
-- ARGV[4]  an id that no other call has
-- ARGV[5]  how many times; 1 if there are several limits
--
-- eight more a limit, beginning with ARGV[6]:
--   1  "bucket", "window" or "gcra"
--   2  "shadow": a limit that denies nobody but itself; else "enforced"
--   3  capacity of the bucket in tokens, or the limit in a window
--   4  cost in tokens; both in ticks for gcra, as gcra.lua has them
--   5  bucket: the refill in tokens a second is the fraction 5 / 6
--      window: its length in microseconds
--   6
--   7  bucket: refilled in steps of at least so many microseconds, or 0
--      gcra: 1 if other requests may have another capacity, or 0
--   8  time to live in milliseconds: after it without a call, the bucket would
--      be full, or the window empty, and so it may go; of no meaning for gcra
--
-- and, if there are several requests, for each of them: how many times, then
-- the number of its limits, then which limits these are, the first one being 1.
-- Without these there is one request, ARGV[5] times, with all limits.
--
-- State
--   bucket: a hash, the same as token_bucket.lua keeps
--     tokens      tokens there were at lastRefill, up to six decimals
--     lastRefill  microseconds since the epoch, by the clock that counts
--     expires     milliseconds since the epoch, by Redis's clock: when it goes
--     seen        when lastRefill was by the other clock, of slow buckets only
--   window: a sorted set with an entry for each request that passed; its score
--     is the time in microseconds, and its member TOTAL:COST:SEEN:ID, where
--     TOTAL is the sum of all costs up to and with this one. So what a window
--     holds is known from its first entry and its last. Entries that have left
--     are cleared away by calls that pass, each a portion of them, as a million
--     at once would hold Redis up.
--   gcra: as gcra.lua keeps it
--
-- Reply: integers, in the order of the requests, and of the limits of each; a
-- single one is no array.
--   gcra: t, ticks
--   bucket: t, microtokens; with a step, a second one: microseconds gone of it
--   window: t, how much is left; microseconds until the oldest entry leaves;
--           microseconds until the cost fits, 0 if it does
--   t >= 0: this limit does not deny, t is what is left after the request;
--   t < 0: it denies, and -1 - t is there.
--   Where an enforced limit denies, nothing was taken for the request.
--   Of a request that comes several times, before all these: how many times it
--   passes; t < 0 if it never does.
--   An error instead of the first integer of a request, or of the whole reply
--   if there is one request alone: what one of its keys holds is no limit, or
--   "CLOCK", nginx's time is too far behind. Others of its integers are 0.
--
-- Time. A bucket counts whole microtokens, of which as many make a token as
-- microseconds make a second: the fraction of the refill also is microtokens a
-- microsecond, and nothing is lost to rounding. Time that runs back refills
-- nothing: Redis's own clock goes on from where it is then; nginx's clocks,
-- which are many, wait for the one that is ahead. A leap forward is told from
-- mere idleness by the other clock, and counts for an hour at most.

local BEHIND = 60000000
local PORTION = 200        -- entries of a window that one call clears away

local CLOCK = 'CLOCK nginx is more than a minute behind'

local take = ARGV[1] == 'take'
local nginx = ARGV[2] == 'nginx'

local call, pcall = redis.call, redis.pcall
local tonumber, floor, max, min = tonumber, math.floor, math.max, math.min
local format = string.format

--@ include clock
--@ include leap
--@ include integer
--@ include tokens
--@ include entry
--@ include leftover

local ms = floor(now / 1000)
local seen = tonumber(ARGV[3])

if nginx then
    now, seen = seen, now
end

--@ include ticks

local function look_at_bucket(i, a)
    local ttl = tonumber(ARGV[a + 7])
    local slow = ttl * 1000 > HOUR
    local state = pcall('HMGET', KEYS[i], 'tokens', 'lastRefill', 'expires',
                        'seen')
    local tokens, last = tonumber(state[1]), tonumber(state[2])
    local expires = max(0, tonumber(state[3]) or 0)

    if not (tokens and last) then
        local failed = clear_leftover(KEYS[i], 'hash', state.err and state,
                                      not take)

        if failed then
            return failed
        end

        tokens = nil
    end

    local full = ARGV[a + 2] * 1000000
    local num, den = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
    local step = tonumber(ARGV[a + 6])
    local set_back = false

    if tokens then
        -- not below zero, nor "nan", should somebody else have written that
        tokens = max(0, floor(tokens * 1000000 + 0.5))
        last = max(0, last)

        local elapsed = now - last

        if elapsed < 0 then
            if not nginx then
                last = now
                set_back = true
            elseif elapsed < -BEHIND then
                return { err = CLOCK }
            end

            elapsed = 0
        end

        local then_seen = slow and tonumber(state[4])

        if then_seen and elapsed > HOUR then
            elapsed = elapsed - leap(elapsed, seen - then_seen)
            last = now - elapsed
        end

        if step > 0 then
            elapsed = elapsed - elapsed % step
        end

        -- time that made no whole microtoken yet is left to the next call
        local refill = floor(elapsed * num / den)

        if refill > 0 then
            tokens = tokens + refill
            last = min(now, last + (step > 0 and elapsed
                                         or math.ceil(refill * den / num)))
        end

        -- a full bucket saves up no time
        if tokens >= full then
            tokens = full
            last = max(last, now)
        end
    else
        tokens = full
        last = now
        expires = 0
    end

    local cost = ARGV[a + 3] * 1000000
    local needed = tokens < full and ttl * 500 or 0

    if num > 0 then
        needed = (full - tokens) * den / num

        if step > 0 and needed > 0 then
            needed = math.ceil(needed / step) * step - (now - last)
        end
    end

    return { taken = 0, left = tokens, cost = cost, last = last, slow = slow,
             step = step, set_back = set_back, needed = needed, ttl = ttl,
             expires = expires, kind = 'bucket', shadow = false }
end

-- a key that is used again gets twice its time, so that few calls renew it
local function lifetime(b)
    return b.expires > 0 and 2 * b.ttl or b.ttl
end

-- in this order: a key that could not be told when to go says so
local function renew_bucket(key, b)
    local ttl = lifetime(b)

    call('PEXPIRE', key, integer(ttl))
    call('HSET', key, 'expires', integer(ms + ttl))
end

-- as written last: the same for all buckets that were full
local left_text, left_was, last_text, last_was, seen_text

local function write_bucket(key, _, b)
    local left, last = b.left, b.last

    if left ~= left_was then
        left_text = tokens_text(left)
        left_was = left
    end

    if last ~= last_was then
        last_text = integer(last)
        seen_text = integer(seen - (now - last))
        last_was = last
    end

    if b.slow then
        call('HSET', key, 'tokens', left_text, 'lastRefill', last_text,
             'seen', seen_text)
    else
        call('HSET', key, 'tokens', left_text, 'lastRefill', last_text)
    end

    if b.expires < ms + b.ttl then
        renew_bucket(key, b)
    end
end

local function look_at_gcra(i, a)
    local burst, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local state = pcall('GET', KEYS[i])
    local full_at = tonumber(state or nil)

    if not full_at then
        local failed = state
                       and clear_leftover(KEYS[i], 'string',
                                          type(state) == 'table' and state,
                                          not take)

        if failed then
            return failed
        end

        full_at = ticks
    end

    local lacks = min(burst, max(0, full_at - ticks))

    -- set right as gcra.lua does it; but of nginx's clocks one may be behind,
    -- and the one that is ahead would get more than it should
    return { taken = 0, left = burst - lacks, cost = cost, burst = burst,
             needed = 0, kind = 'gcra', shadow = false,
             set_back = not nginx and ARGV[a + 6] == '0'
                        and full_at - ticks > burst }
end

-- of nginx's clocks one may be far ahead, which nobody sets right: what it has
-- written goes as soon as it can
local function write_gcra(key, _, g)
    local full_at = ticks + g.burst - g.left
    local goes_at = nginx and full_at + 16000000
                    or (floor(full_at / EPOCH) + 2) * EPOCH

    call('SET', key, integer(full_at),
         'PX', integer(math.ceil((goes_at - ticks) / 16000)))
end

local function entry_at(key, rank)
    local e = pcall('ZRANGE', key, rank, rank, 'WITHSCORES')

    if e.err then
        return e
    end

    if e[1] then
        local total, cost, at = entry_parse(e[1])

        return tonumber(total), tonumber(cost), tonumber(e[2]), tonumber(at)
    end
end

-- all entries go with the clock
local function shift(key, delta)
    local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')

    for i = 1, #all, 2 do
        call('ZADD', key, 'XX', integer(all[i + 1] + delta), all[i])
    end
end

local function look_at_window(i, a)
    local key = KEYS[i]
    local limit, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local length = tonumber(ARGV[a + 4])
    local total, _, score, at = entry_at(key, -1)
    local w = { taken = 0, cost = cost, now = now, total = 0, used = 0,
                oldest = 0, wait = 0, needed = 0, left = limit,
                length = length, clear = 0, kind = 'window', shadow = false }

    if type(total) == 'table' then
        return clear_leftover(key, 'zset', total, not take) or w
    end

    if not total then
        return w
    end

    local delta = 0

    if score > now then
        if not nginx then
            delta = now - score
        elseif score - now > BEHIND then
            return { err = CLOCK }
        else
            w.now = score
        end
    elseif length > HOUR then
        delta = leap(now - score, seen - at)
    end

    if delta ~= 0 then
        if take then
            shift(key, delta)
        else
            w.now = now - delta
        end
    end

    -- entries that have left may still be there, in front
    local cut = w.now - length
    local n = call('ZCARD', key)
    local gone = call('ZCOUNT', key, '-inf', integer(cut))

    w.clear = min(gone, PORTION)

    if w.clear < n then
        w.total = total
    end

    if gone < n then
        local first, first_cost, first_score = entry_at(key, gone)

        w.used = total - first + first_cost
        w.oldest = first_score - cut
        w.needed = score + delta - cut
    end

    w.left = max(0, limit - w.used)

    if w.left < cost and w.used > 0 then
        -- the first entry with which enough has left
        local enough = total - (limit - cost)
        local low, high = gone, n - 1

        while low < high do
            local mid = floor((low + high) / 2)

            if entry_at(key, mid) >= enough then
                high = mid
            else
                low = mid + 1
            end
        end

        local _, _, leaves = entry_at(key, low)

        w.wait = leaves - cut
    end

    return w
end

local function write_window(key, a, w)
    if w.clear > 0 then
        call('ZREMRANGEBYRANK', key, 0, w.clear - 1)
    end

    call('ZADD', key, integer(w.now),
         entry_text(w.total + w.taken, w.taken, integer(seen), ARGV[4]))
    call('PEXPIRE', key, ARGV[a + 7])
end

local look_at = { bucket = look_at_bucket, window = look_at_window,
                  gcra = look_at_gcra }
local write = { bucket = write_bucket, window = write_window,
                gcra = write_gcra }

local limits = {}
local reply = {}

for i = 1, #KEYS do
    local a = 8 * i - 2
    local limit = look_at[ARGV[a]](i, a)

    if limit.err then
        limit = { err = limit.err, taken = 0, left = 0, cost = 1, oldest = 0,
                  wait = 0, needed = 0, last = now, kind = ARGV[a],
                  step = tonumber(ARGV[a + 6]) }
    end

    limit.shadow = ARGV[a + 1] == 'shadow'
    limits[i] = limit
end

-- limits of the request that is served, and how long the reply is so far
local own = {}
local told = 0

-- one request, so many times; the numbers of its limits are in ARGV from
-- "first" on, or it has all limits
local function serve(times, n, first)
    local at = told + 1
    local passed = times
    local failed

    for i = 1, n do
        local limit = limits[first and tonumber(ARGV[first + i - 1]) or i]

        own[i] = limit
        failed = failed or limit.err

        -- one in the shadow is asked if there is no other
        if n == 1 or not limit.shadow then
            if limit.left < limit.cost then
                passed = 0
            elseif times > 1 then
                passed = min(passed, floor(limit.left / limit.cost))
            end
        end
    end

    if times > 1 then
        told = at
        reply[at] = passed
    end

    for i = 1, n do
        local limit = own[i]
        local left, cost, kind = limit.left, limit.cost, limit.kind
        local fits = left >= cost

        if fits and passed > 0 and take and not failed then
            left = left - passed * cost
            limit.left = left
            limit.taken = limit.taken + passed * cost
        end

        told = told + 1
        reply[told] = fits and left or -1 - left

        if kind == 'window' then
            if limit.taken > 0 and limit.oldest == 0 then
                limit.oldest = limit.length
            end

            -- others of this call have filled it: not before an entry leaves
            if not fits and limit.wait == 0 then
                limit.wait = limit.oldest
            end

            reply[told + 1] = limit.oldest
            reply[told + 2] = fits and 0 or limit.wait
            told = told + 2
        elseif kind == 'bucket' and limit.step > 0 then
            told = told + 1
            reply[told] = now - limit.last
        end
    end

    if failed then
        for i = at, told do
            reply[i] = 0
        end

        reply[at] = { err = failed }
    end
end

local first = 6 + 8 * #KEYS
local alone = not ARGV[first]

if alone then
    serve(tonumber(ARGV[5]), #KEYS)
end

while ARGV[first] do
    local n = tonumber(ARGV[first + 1])

    serve(tonumber(ARGV[first]), n, first + 2)
    first = first + 2 + n
end

for i = 1, #KEYS do
    local a = 8 * i - 2
    local limit = limits[i]

    -- a denied call changes nothing, but a clock that was set back has to be
    -- followed, or the limit would stand still until it has caught up
    if limit.taken > 0 or (take and limit.set_back) then
        write[limit.kind](KEYS[i], a, limit)

    -- and a limit that has become slower, larger or longer since the last take
    -- must not be forgotten before its time
    elseif take and limit.needed > 0 then
        if limit.kind == 'bucket' then
            if limit.expires < ms + limit.needed / 1000 then
                renew_bucket(KEYS[i], limit)
            end
        elseif call('PTTL', KEYS[i]) < limit.needed / 1000 then
            call('PEXPIRE', KEYS[i], ARGV[a + 7])
        end
    end
end

if told == 1 or (alone and type(reply[1]) == 'table') then
    return reply[1]
end

return reply
