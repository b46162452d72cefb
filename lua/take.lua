-- All limits of a request that live here: takes its cost from every one of
-- them, or, if one denies, from none. Of a single limit it may take the cost of
-- as many of several requests as fit.
--
-- KEYS     one key a limit
-- ARGV[1]  "take", or "peek": look at the state, change nothing
-- ARGV[2]  whose time counts: "redis" or "nginx"
-- ARGV[3]  nginx's time, microseconds since the epoch
-- ARGV[4]  an id that no other call has
-- ARGV[5]  how many requests; 1 if there are several limits
--
-- and eight more a limit, beginning with ARGV[6]:
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
--      be full, or the window empty, and so it may go
--
-- State
--   bucket: a hash
--     tokens      tokens there were at lastRefill, six decimals
--     lastRefill  microseconds since the epoch, by the clock that counts
--     seen        the same moment by the other clock, of slow buckets only
--   window: a sorted set with an entry for each request that passed; its score
--     is the time in microseconds, and its member TOTAL:COST:SEEN:ID, where
--     TOTAL is the sum of all costs up to and with this one. So what a window
--     holds is known from its first entry and its last.
--   gcra: as gcra.lua keeps it
--
-- Reply: integers, in the order of the limits; a single one is no array.
--   gcra: t, ticks
--   bucket: t, microtokens; with a step, a second one: microseconds gone of it
--   window: t, how much is left; microseconds until the oldest entry leaves;
--           microseconds until the cost fits, 0 if it does
--   t >= 0: this limit does not deny, t is what is left after the call;
--   t < 0: it denies, and -1 - t is there.
--   Where an enforced limit denies, nothing was taken anywhere.
--   Of several requests, before all these: how many of them pass; t < 0 if none
--   does.
--   An error "CLOCK": nginx's time is too far behind.
--
-- Time. A bucket counts whole microtokens, of which as many make a token as
-- microseconds make a second: the fraction of the refill also is microtokens a
-- microsecond, and nothing is lost to rounding. Time that runs back refills
-- nothing: Redis's own clock goes on from where it is then; nginx's clocks,
-- which are many, wait for the one that is ahead. A leap forward is told from
-- mere idleness by the other clock, and counts for an hour at most.

local HOUR = 3600000000
local BEHIND = 60000000

local take = ARGV[1] == 'take'
local nginx = ARGV[2] == 'nginx'
local times = tonumber(ARGV[5])

local call = redis.call
local floor, format = math.floor, string.format

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local seen = tonumber(ARGV[3])

if nginx then
    now, seen = seen, now
end

local reply = {}
local limits = {}
local denied = false

-- in two halves, as a "%d" may have but 32 bits, and "%.0f" takes its time
local function integer(n)
    if n < 100000000 then
        return format('%.0f', n)
    end

    return format('%d%08d', floor(n / 100000000), n % 100000000)
end

local function decimal(n)
    return format('%d.%06d', floor(n / 1000000), n % 1000000)
end

-- how much of the time since a moment was a leap, and does not count; a clock
-- that was further ahead at that moment than it is now can't tell
local function leap(elapsed, by_other)
    if by_other > -HOUR then
        return math.max(0, elapsed - math.max(0, by_other) - HOUR)
    end

    return 0
end

-- reads a key; one that another algorithm has left counts as gone, so that a
-- limit whose algorithm was changed neither fails nor stops the others
local function read(key, ...)
    local state = redis.pcall(...)

    if type(state) ~= 'table' or not state.err then
        return state
    end

    local kind = call('TYPE', key).ok

    if kind ~= 'hash' and kind ~= 'zset'
       and not (kind == 'string' and tonumber(call('GET', key)))
    then
        return call(...)
    end

    if take then
        call('DEL', key)
    end

    return {}
end

local function look_at_bucket(key, a)
    local slow = tonumber(ARGV[a + 7]) * 1000 > HOUR
    local state

    if slow then
        state = read(key, 'HMGET', key, 'tokens', 'lastRefill', 'seen')
    else
        state = read(key, 'HMGET', key, 'tokens', 'lastRefill')
    end

    local full = ARGV[a + 2] * 1000000
    local num, den = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
    local step = tonumber(ARGV[a + 6])
    local tokens, last = tonumber(state[1]), tonumber(state[2])
    local set_back = false

    if tokens and last then
        -- not below zero, nor "nan", should somebody else have written that
        tokens = math.max(0, floor(tokens * 1000000 + 0.5))
        last = math.max(0, last)

        local elapsed = now - last

        if elapsed < 0 then
            if not nginx then
                last = now
                set_back = true
            elseif elapsed < -BEHIND then
                return nil
            end

            elapsed = 0
        end

        if slow and elapsed > HOUR and tonumber(state[3]) then
            elapsed = elapsed - leap(elapsed, seen - state[3])
            last = now - elapsed
        end

        if step > 0 then
            elapsed = elapsed - elapsed % step
        end

        -- time that made no whole microtoken yet is left to the next call
        local refill = floor(elapsed * num / den)

        if refill > 0 then
            tokens = tokens + refill
            last = math.min(now, last + (step > 0 and elapsed
                                         or math.ceil(refill * den / num)))
        end

        -- a full bucket saves up no time
        if tokens >= full then
            tokens = full
            last = math.max(last, now)
        end
    else
        tokens = full
        last = now
    end

    local cost = ARGV[a + 3] * 1000000
    local needed = ARGV[a + 7] * 500

    if num > 0 then
        needed = (full - tokens) * den / num

        if step > 0 and needed > 0 then
            needed = math.ceil(needed / step) * step - (now - last)
        end
    end

    return { fits = tokens >= cost, tokens = tokens, cost = cost, last = last,
             slow = slow, step = step, set_back = set_back, needed = needed }
end

local function write_bucket(key, a, b)
    if b.slow then
        call('HSET', key,
                   'tokens', decimal(b.tokens),
                   'lastRefill', integer(b.last),
                   'seen', integer(seen - (now - b.last)))
    else
        call('HSET', key,
                   'tokens', decimal(b.tokens),
                   'lastRefill', integer(b.last))
    end

    call('PEXPIRE', key, ARGV[a + 7])
end

local function look_at_gcra(key, a)
    local burst, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local ticks = (now - 1700000000000000) * 16
    local full_at = read(key, 'GET', key)

    -- an empty table: another algorithm's
    full_at = type(full_at) ~= 'table' and tonumber(full_at) or ticks

    local lacks = math.min(burst, math.max(0, full_at - ticks))

    -- set right as gcra.lua does it; but of nginx's clocks one may be behind,
    -- and the one that is ahead would get more than it should
    return { fits = burst - lacks >= cost, left = burst - lacks, cost = cost,
             burst = burst, ticks = ticks, needed = 0,
             set_back = not nginx and ARGV[a + 6] == '0'
                        and full_at - ticks > burst }
end

local function write_gcra(key, g)
    local lacks = g.burst - g.left

    call('SET', key, integer(g.ticks + lacks),
               'PX', integer(math.ceil(lacks / 16000) + 1000))
end

local look_at = { bucket = look_at_bucket, gcra = look_at_gcra }

local function entry(key, rank)
    local e = read(key, 'ZRANGE', key, rank, rank, 'WITHSCORES')

    if e[1] then
        local total, cost, at = string.match(e[1], '^(%d+):(%d+):(%d+):')
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

local function look_at_window(key, a)
    local limit, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local length = tonumber(ARGV[a + 4])
    local total, _, score, at = entry(key, -1)
    local w = { cost = cost, now = now, total = 0, used = 0, oldest = 0,
                wait = 0, needed = 0 }

    if not total then
        w.fits = cost <= limit
        w.left = limit
        return w
    end

    local delta = 0

    if score > now then
        if not nginx then
            delta = now - score
        elseif score - now > BEHIND then
            return nil
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

    local cut = w.now - length
    local n = call('ZCARD', key)
    local gone = call('ZCOUNT', key, '-inf', integer(cut))

    w.gone = gone > 0 and integer(cut)

    if gone < n then
        local first, first_cost, first_score = entry(key, gone)

        w.total = total
        w.used = total - first + first_cost
        w.oldest = first_score - cut
        w.needed = score + delta - cut
    end

    w.left = math.max(0, limit - w.used)
    w.fits = w.used + cost <= limit

    if not w.fits and w.used > 0 then
        -- the first entry with which enough has left
        local enough = total - (limit - cost)
        local low, high = gone, n - 1

        while low < high do
            local mid = floor((low + high) / 2)

            if entry(key, mid) >= enough then
                high = mid
            else
                low = mid + 1
            end
        end

        local _, _, leaves = entry(key, low)

        w.wait = leaves - cut
    end

    return w
end

look_at.window = look_at_window

local function write_window(key, a, w)
    if w.gone then
        call('ZREMRANGEBYSCORE', key, '-inf', w.gone)
    end

    call('ZADD', key, integer(w.now),
               format('%016.0f:%.0f:%.0f:%s', w.total + w.taken,
                             w.taken, seen, ARGV[4]))
    call('PEXPIRE', key, ARGV[a + 7])
end

for i = 1, #KEYS do
    local a = 8 * i - 2
    local limit = look_at[ARGV[a]](KEYS[i], a)

    if not limit then
        return redis.error_reply('CLOCK nginx is more than a minute behind')
    end

    limits[i] = limit

    if not limit.fits and ARGV[a + 1] ~= 'shadow' then
        denied = true
    end
end

for i = 1, #KEYS do
    local a = 8 * i - 2
    local l = limits[i]
    local taken = take and l.fits and not denied
    local passed = l.fits and 1 or 0
    local state

    if l.fits and times > 1 then
        passed = math.min(times, floor((l.left or l.tokens) / l.cost))
    end

    l.taken = passed * l.cost

    if times > 1 then
        reply[#reply + 1] = passed
    end

    if ARGV[a] == 'window' then
        if taken then
            write_window(KEYS[i], a, l)
            l.left = l.left - l.taken

            if l.oldest == 0 then
                l.oldest = tonumber(ARGV[a + 4])
            end
        end

        state = l.left
    elseif ARGV[a] == 'gcra' then
        if taken then
            l.left = l.left - l.taken
        end

        if taken or (take and l.set_back) then
            write_gcra(KEYS[i], l)
        end

        state = l.left
    else
        if taken then
            l.tokens = l.tokens - l.taken
        end

        -- a denied call changes nothing, but a clock that was set back has to
        -- be followed, or the bucket would stand still until it has caught up
        if taken or (take and l.set_back) then
            write_bucket(KEYS[i], a, l)
        end

        state = l.tokens
    end

    -- a limit that has become slower, larger or longer since the last take
    -- must not be forgotten before its time
    if take and not taken and l.needed > 0
       and call('PTTL', KEYS[i]) < l.needed / 1000
    then
        call('PEXPIRE', KEYS[i], ARGV[a + 7])
    end

    reply[#reply + 1] = l.fits and state or -1 - state

    if ARGV[a] == 'window' then
        reply[#reply + 1] = l.oldest
        reply[#reply + 1] = l.wait
    elseif ARGV[a] == 'bucket' and l.step > 0 then
        reply[#reply + 1] = now - l.last
    end
end

if #reply == 1 then
    return reply[1]
end

return reply
