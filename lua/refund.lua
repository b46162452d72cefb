-- Gives back what the other scripts took, or a part of it: because a limit that
-- lives elsewhere denied the request, or because nobody needed it.
--
-- KEYS     one key a limit; a bucket or gcra may come several times
-- ARGV     four a limit:
--   1  "bucket", "window" or "gcra"
--   2  capacity of the bucket in tokens; of no meaning for the others
--   3  how many tokens; of gcra, ticks that they are worth
--   4  window: the id of the call that took
--
-- Reply: how many of the limits got something back.
--
-- A bucket never gets more than its capacity, and one that is gone is full. An
-- entry of a window is found among the latest ones; one that is no more there
-- stays taken until it leaves by itself. Times to live stay as they are.

local LATEST = 1000

local given = 0
local unpack = table.unpack or unpack

-- of all keys at once, as soon as one of them is asked for
local strings

local function state_of(i)
    strings = strings or redis.call('MGET', unpack(KEYS))

    return strings[i] or ''
end

-- tokens of those that got something: a key may come several times
local now_has = {}

local function refund_bucket(i, capacity, cost)
    local key, state = KEYS[i], state_of(i)
    local tokens = now_has[key]

    if not tokens then
        tokens = string.sub(state, 1, 7) == 'tokens '
                 and tonumber(string.sub(state, 8, 24))

        -- no more than fits its column: neither is "inf" nor "nan"
        if not (tokens and tokens < 10000000000) then
            return
        end

        tokens = math.max(0, math.floor(tokens * 1000000 + 0.5))
    end

    tokens = math.max(tokens, math.min(capacity * 1000000,
                                       tokens + cost * 1000000))

    redis.call('SETRANGE', key, '7',
               string.format('%10d.%06d', math.floor(tokens / 1000000),
                             tokens % 1000000))
    now_has[key] = tokens
    given = given + 1
end

local function refund_window(key, id, amount)
    local later = {}

    for i = 1, 2 * LATEST, 2 do
        -- it is among the very last, as a rule: a few first, then more
        if i > #later then
            local from = #later / 2
            local more = redis.pcall('ZREVRANGE', key, from,
                                     2 * from + 7, 'WITHSCORES')

            if not more[1] then
                return
            end

            for k = 1, #more do
                later[#later + 1] = more[k]
            end
        end

        local total, cost, seen, owner =
            string.match(later[i], '^(%d+):(%d+):(%d+):(.*)$')

        if owner == id then
            local rest = cost - amount

            -- new ones come before old ones go: a key without any entry would
            -- be gone, and with it its time to live
            if rest > 0 then
                redis.call('ZADD', key, later[i + 1],
                           string.format('%016.0f:%.0f:%s:%s', total - amount,
                                         rest, seen, id))
            end

            -- the totals of all later ones hold what is given back
            for j = i - 2, 1, -2 do
                local sum, tail = string.match(later[j], '^(%d+)(:.*)$')

                redis.call('ZADD', key, later[j + 1],
                           string.format('%016.0f%s', sum - amount, tail))
                redis.call('ZREM', key, later[j])
            end

            redis.call('ZREM', key, later[i])

            given = given + 1
            return
        end
    end
end

local function refund_gcra(i, ticks)
    if string.match(state_of(i), '^%d+$') then
        redis.call('DECRBY', KEYS[i], ticks)
        given = given + 1
    end
end

for i = 1, #KEYS do
    local a = 4 * i - 3

    if ARGV[a] == 'window' then
        refund_window(KEYS[i], ARGV[a + 3], tonumber(ARGV[a + 2]))
    elseif ARGV[a] == 'gcra' then
        refund_gcra(i, ARGV[a + 2])
    else
        refund_bucket(i, tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]))
    end
end

return given
