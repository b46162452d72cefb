-- Returns tokens that the other scripts took, or a part of them: because a
-- limit on another server denied the request, or because nobody needed them.
--
-- KEYS     one key a limit; all but a window may come several times
-- ARGV     four a limit:
--   1  "bucket", "window", "gcra", "fixed" or "counter"
--   2  capacity of the bucket in tokens; ignored for the others
--   3  how many tokens; for gcra, the ticks that they are worth
--   4  window: the id of the call that took
--      fixed, counter: the period from which was taken, as the reply said
--
-- Reply: how many of the limits got something back.
--
-- A bucket never gets more than its capacity, and a missing bucket is full. An
-- entry of a window is searched among the latest ones; if it is not found, its
-- cost stays taken until the entry leaves the window. A fixed window that has
-- ended gets nothing; of a counter, the period before gets it as well. Times to
-- live stay as they are.

local LATEST = 1000

local call, pcall = redis.call, redis.pcall
local max, min, format = math.max, math.min, string.format

local given = 0

--@ include tokens
--@ include entry
--@ include digits
--@ include fixed
--@ include counter

local function refund_bucket(key, capacity, cost)
    local bucket = pcall('HGET', key, 'tokens')
    local tokens = type(bucket) == 'string' and tonumber(bucket)

    -- not more than a bucket may have, and neither "inf" nor "nan"
    if not (tokens and tokens < 10000000000) then
        return
    end

    tokens = max(0, math.floor(tokens * 1000000 + 0.5))
    tokens = max(tokens, min(capacity * 1000000, tokens + cost * 1000000))

    call('HSET', key, 'tokens', tokens_text(tokens))
    given = given + 1
end

local function refund_window(key, id, amount)
    local later = {}

    for i = 1, 2 * LATEST, 2 do
        -- it is usually among the very last: look at a few first, then more
        if i > #later then
            local from = #later / 2
            local more = pcall('ZREVRANGE', key, from, 2 * from + 7,
                               'WITHSCORES')

            if not more[1] then
                return
            end

            for k = 1, #more do
                later[#later + 1] = more[k]
            end
        end

        local total, cost, seen, owner = entry_parse(later[i])

        if owner == id then
            local rest = cost - amount

            -- add new entries before old ones are removed: Redis deletes a key
            -- without entries, and its time to live with it
            if rest > 0 then
                call('ZADD', key, later[i + 1],
                     entry_text(total - amount, rest, seen, id))
            end

            -- the totals of all later entries include what is returned
            for j = i - 2, 1, -2 do
                local sum, own, at, by = entry_parse(later[j])

                -- another program's member has no total
                if sum then
                    call('ZADD', key, later[j + 1],
                         entry_text(sum - amount, own, at, by))
                    call('ZREM', key, later[j])
                end
            end

            call('ZREM', key, later[i])

            given = given + 1
            return
        end
    end
end

local function refund_gcra(key, ticks)
    local state = pcall('GET', key)

    if type(state) == 'string' and string.match(state, '^%d+$') then
        call('DECRBY', key, ticks)
        given = given + 1
    end
end

local function refund_fixed(key, start, amount)
    local state = pcall('GET', key)
    local from, _, count = fixed_parse(state)

    if from == tonumber(start) * 1000 then
        call('SETRANGE', key, FIXED_COUNT, digits(max(0, count - amount)))
        given = given + 1
    end
end

local function refund_counter(key, start, amount)
    local state = pcall('GET', key)
    local from, to, previous, count = counter_parse(state)

    if not from then
        return
    end

    if from == tonumber(start) * 1000 then
        call('SETRANGE', key, #state - 10, digits(max(0, count - amount)))
        given = given + 1
    elseif from - (to - from) == tonumber(start) * 1000 then
        local ttl = call('PTTL', key)

        if ttl > 0 then
            call('SET', key, counter_text(from, to, max(0, previous - amount))
                             .. digits(count), 'PX', ttl)
            given = given + 1
        end
    end
end

for i = 1, #KEYS do
    local a = 4 * i - 3

    if ARGV[a] == 'window' then
        refund_window(KEYS[i], ARGV[a + 3], tonumber(ARGV[a + 2]))
    elseif ARGV[a] == 'gcra' then
        refund_gcra(KEYS[i], ARGV[a + 2])
    elseif ARGV[a] == 'fixed' then
        refund_fixed(KEYS[i], ARGV[a + 3], tonumber(ARGV[a + 2]))
    elseif ARGV[a] == 'counter' then
        refund_counter(KEYS[i], ARGV[a + 3], tonumber(ARGV[a + 2]))
    else
        refund_bucket(KEYS[i], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]))
    end
end

return given
