-- Takes the cost of a request from every one of its limits on this server, or
-- from none if one of them denies. A request with a single limit may come
-- several times: then the cost is taken as often as it fits. Several requests
-- may share a call, and limits: they are served in turn.
--
-- KEYS     one key for each limit, no key twice
-- ARGV[1]  "take", or "peek": look at the state, change nothing
-- ARGV[2]  the clock that counts: "redis" or "nginx"
-- ARGV[3]  nginx's time, microseconds since the epoch
-- ARGV[4]  an id that no other call has
-- ARGV[5]  how many times the request comes; 1 if it has several limits
--
-- eight for each limit, beginning with ARGV[6]:
--   1  "bucket", "window", "gcra", "fixed" or "counter"
--   2  "shadow": a limit in a dry run, which denies no request; or "enforced"
--   3  capacity of the bucket in tokens, or the limit in a window
--   4  cost in tokens; gcra has 3 and 4 in ticks, as gcra.lua does
--   5  bucket: the refill in tokens a second is the fraction 5 / 6
--      window, counter: its length in microseconds
--      fixed: the same, or 0 for months
--   6  bucket: see 5
--      fixed: seconds to add to the time, see "period" below
--   7  bucket: refilled in steps of at least so many microseconds, or 0
--      gcra: 1 if other requests may have another capacity, or 0
--   8  time to live in milliseconds, in which the bucket becomes full, or the
--      window empty, so that the key may expire; a bucket that needs longer
--      gets the time that it needs; ignored for gcra, fixed and counter
--
-- and, if there are several requests, for each of them: how many times it
-- comes, the number of its limits, and which limits these are, counted from 1.
-- Without these there is one request with all limits, and it comes ARGV[5]
-- times.
--
-- State
--   bucket: a hash, the same as token_bucket.lua keeps
--     tokens      the tokens at lastRefill, up to six decimals
--     lastRefill  microseconds since the epoch, by the clock that counts
--     expires     when the key expires: milliseconds since the epoch, by
--                 Redis's clock
--     seen        lastRefill by the other clock; only in slow buckets, which
--                 take more than an hour to become full
--   window: a sorted set with an entry for each request that passed, see
--     "entry" below. As an entry has the total of all costs up to its own, the
--     first and the last entry say what a window holds. Entries that have left
--     the window are removed by calls that pass, PORTION at a time: removing a
--     million at once would block Redis.
--   gcra: as gcra.lua keeps it
--   fixed, counter: see "fixed" and "counter" below
--
-- Reply: integers, in the order of the requests and of the limits of each. A
-- single integer is not an array.
--   gcra: t, in ticks
--   bucket: t, in microtokens; with a step also the microseconds gone of it
--   window: t, how much is left; microseconds until the oldest entry leaves;
--           microseconds until the cost fits, 0 if it does
--   fixed: t, how much is left; microseconds until the window ends; when it
--          began, which a refund has to say: milliseconds since the epoch
--   counter: t, how much is left; microseconds until nothing of it counts;
--            microseconds until the cost fits, 0 if it does after the request;
--            when the current period began, as for fixed
--   t >= 0: this limit does not deny, and t is left after the request.
--   t < 0: it denies, and -1 - t is there.
--   Where an enforced limit denies, nothing was taken for the request.
--   If a request comes several times, how many of them pass is before all
--   these, and t < 0 if none does.
--   An error takes the place of the first integer of a request, and its other
--   integers are 0; if there is one request only, the error is the whole reply.
--   WRONGTYPE: one of its keys holds no state of a limit. CLOCK: nginx's time
--   is too far behind.
--
-- Time. A bucket counts whole microtokens. A token has as many of them as a
-- second has microseconds, so the fraction of the refill also is microtokens a
-- microsecond, and nothing is lost to rounding. A clock that steps back
-- refills nothing. With Redis's own clock, time continues from the new value.
-- The clocks of several nginx machines wait for the one that is ahead. The
-- other clock distinguishes a leap forward from mere idleness: a leap counts
-- for an hour at most.

local BEHIND = 60000000
local PORTION = 200

-- no bucket's key lives longer: a hundred years, in milliseconds
local LONGEST = 3155760000000

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
--@ include period
--@ include digits
--@ include fixed
--@ include counter

-- keys expire by Redis's clock, whichever counts; "seen" is the other time
local ms = floor(now / 1000)
local seen = tonumber(ARGV[3])

if nginx then
    now, seen = seen, now
end

--@ include ticks
--@ include fixed_now
--@ include counter_now
--@ include lives

-- Each limit is read, then its requests take from it, then it is written.
-- look_at_*(i, a) gets the number of the limit and the index of its first
-- argument; it returns an error, or the fields that all limits have:
--   kind, shadow, cost
--   left      what is there, in the unit of the cost
--   taken     what this call has taken of it, 0 to begin with
--   needed    microseconds for which the key is needed even if nothing is taken
--   set_back  true if the state must be written because a clock was set back
-- and those that write_*(key, a, limit) needs.

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
        -- another program may have written a negative number or "nan"
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

        -- time that made no whole microtoken yet is kept for the next call
        local refill = floor(elapsed * num / den)

        if refill > 0 then
            tokens = tokens + refill
            last = min(now, last + (step > 0 and elapsed
                                         or math.ceil(refill * den / num)))
        end

        -- a full bucket saves no time
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
             full = full, num = num, den = den, expires = expires,
             kind = 'bucket', shadow = false }
end

-- milliseconds until it is full, and a second more
local function time_to_live(b)
    if b.num == 0 then
        return b.ttl
    end

    local needed = ((b.full - b.left) * b.den / b.num + b.step) / 1000

    return max(b.ttl, min(floor(needed) + 1000, LONGEST))
end

-- A key that is used again gets twice its time to live, so that few calls
-- renew it. PEXPIRE comes first: if it fails, "expires" makes the next call
-- try again.
local function renew_bucket(key, b)
    local ttl = time_to_live(b)

    ttl = b.expires > 0 and 2 * ttl or ttl

    call('PEXPIRE', key, integer(ttl))
    call('HSET', key, 'expires', integer(ms + ttl))
end

-- texts as written last: they are the same for all buckets that were full
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

    if b.expires < ms + time_to_live(b) then
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

    -- A bucket that lacks more than its capacity is corrected as in gcra.lua,
    -- but not by nginx's clocks: one of them may be behind, and machines that
    -- are ahead would get more than they should.
    return { taken = 0, left = burst - lacks, cost = cost, burst = burst,
             needed = 0, kind = 'gcra', shadow = false,
             set_back = not nginx and ARGV[a + 6] == '0'
                        and full_at - ticks > burst }
end

-- One of nginx's clocks may be far ahead, and nobody corrects what it writes:
-- such a key expires as soon as it can.
local function write_gcra(key, _, g)
    local full_at = ticks + g.burst - g.left
    local goes_at = nginx and full_at + 16000000
                    or (floor(full_at / EPOCH) + 2) * EPOCH

    call('SET', key, integer(full_at),
         'PX', integer(math.ceil((goes_at - ticks) / 16000)))
end

local function look_at_fixed(i, a)
    local limit, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local state = pcall('GET', KEYS[i])
    local from, to, count = fixed_parse(state)

    if state and not from then
        local failed = clear_leftover(KEYS[i], 'string',
                                      type(state) == 'table' and state,
                                      not take)

        if failed then
            return failed
        end
    end

    if from and nginx and from - now > BEHIND then
        return { err = CLOCK }
    end

    local start, finish, used, kept
        = fixed_now(tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]),
                    from, to, count)

    -- a count that was moved to another period must stay there
    return { taken = 0, left = max(0, limit - used), cost = cost, used = used,
             start = start, finish = finish, kept = kept, needed = 0,
             set_back = used > 0 and not kept, kind = 'fixed', shadow = false }
end

local function write_fixed(key, _, f)
    local count = digits(f.used + f.taken)

    if f.kept then
        call('SETRANGE', key, FIXED_COUNT, count)
    else
        call('SET', key, fixed_text(f.start, f.finish) .. count,
             'PX', lives(key, f.finish - f.start, f.finish - now))
    end
end

local function look_at_counter(i, a)
    local limit, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local length = tonumber(ARGV[a + 4])
    local state = pcall('GET', KEYS[i])
    local from, to, before, count = counter_parse(state)

    if state and not from then
        local failed = clear_leftover(KEYS[i], 'string',
                                      type(state) == 'table' and state,
                                      not take)

        if failed then
            return failed
        end
    end

    if from and nginx and from - now > BEHIND then
        return { err = CLOCK }
    end

    local start, previous, used, kept
        = counter_now(length, from, to, before, count)
    local rest = min(length, start + length - now)

    return { taken = 0, cost = cost, limit = limit, length = length,
             left = max(0, limit - used - counter_part(length, previous, rest)),
             previous = previous, used = used, start = start, rest = rest,
             finish = start + length, kept = kept and #state - 10,
             needed = 0, set_back = used > 0 and not kept,
             kind = 'counter', shadow = false }
end

local function write_counter(key, _, c)
    local count = digits(c.used + c.taken)

    if c.kept then
        call('SETRANGE', key, c.kept, count)
    else
        call('SET', key, counter_text(c.start, c.finish, c.previous) .. count,
             'PX', lives(key, c.length, c.finish + c.length - now))
    end
end

-- The entry of that rank, -1 for the last: its total, cost, score, and time by
-- the other clock; nil if there is none, or the error of Redis.
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

    -- how far the clock was set, forward or back, since the last entry
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
            -- all entries move with the clock
            local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')

            for k = 1, #all, 2 do
                call('ZADD', key, 'XX', integer(all[k + 1] + delta), all[k])
            end
        else
            w.now = now - delta
        end
    end

    -- entries that have left the window may still be stored, in front
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
        -- the first entry that, when it leaves, makes room for the cost
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
                  gcra = look_at_gcra, fixed = look_at_fixed,
                  counter = look_at_counter }
local write = { bucket = write_bucket, window = write_window,
                gcra = write_gcra, fixed = write_fixed,
                counter = write_counter }

local limits = {}
local reply = {}

for i = 1, #KEYS do
    local a = 8 * i - 2
    local limit = look_at[ARGV[a]](i, a)

    if limit.err then
        limit = { err = limit.err, taken = 0, left = 0, cost = 1, oldest = 0,
                  wait = 0, needed = 0, last = now, kind = ARGV[a],
                  start = 0, finish = now, length = 0, rest = 0, limit = 0,
                  previous = 0, used = 0,
                  step = tonumber(ARGV[a + 6]) }
    end

    limit.shadow = ARGV[a + 1] == 'shadow'
    limits[i] = limit
end

local size = 0    -- of the reply
local own = {}    -- the limits of the request that is served

-- A request that comes so many times and has n limits. Their numbers are in
-- ARGV from "first" on; without "first" it has all limits.
local function serve(times, n, first)
    local at = size + 1
    local passed = times
    local failed

    for i = 1, n do
        local limit = limits[first and tonumber(ARGV[first + i - 1]) or i]

        own[i] = limit
        failed = failed or limit.err

        -- a shadow limit has a say only if there is no other
        if n == 1 or not limit.shadow then
            if limit.left < limit.cost then
                passed = 0
            elseif times > 1 then
                passed = min(passed, floor(limit.left / limit.cost))
            end
        end
    end

    if times > 1 then
        size = at
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

        size = size + 1
        reply[size] = fits and left or -1 - left

        if kind == 'window' then
            if limit.taken > 0 and limit.oldest == 0 then
                limit.oldest = limit.length
            end

            -- requests of this call have filled it: until an entry leaves
            if not fits and limit.wait == 0 then
                limit.wait = limit.oldest
            end

            reply[size + 1] = limit.oldest
            reply[size + 2] = fits and 0 or limit.wait
            size = size + 2
        elseif kind == 'fixed' then
            reply[size + 1] = limit.finish - now
            reply[size + 2] = limit.start / 1000
            size = size + 2
        elseif kind == 'counter' then
            reply[size + 1], reply[size + 2]
                = counter_times(limit.length, limit.limit - limit.cost,
                                limit.previous, limit.used + limit.taken,
                                limit.finish)
            reply[size + 3] = limit.start / 1000
            size = size + 3
        elseif kind == 'bucket' and limit.step > 0 then
            size = size + 1
            reply[size] = now - limit.last
        end
    end

    if failed then
        for i = at, size do
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

    -- A denied call changes nothing, but a clock that was set back has to be
    -- followed, or the limit would stand still until the clock has caught up.
    if limit.taken > 0 or (take and limit.set_back) then
        write[limit.kind](KEYS[i], a, limit)

    -- A limit that has become slower, larger or longer since the last take
    -- must not be forgotten before its time.
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

if size == 1 or (alone and type(reply[1]) == 'table') then
    return reply[1]
end

return reply
