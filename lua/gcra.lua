-- Generic cell rate algorithm: the limits of a token bucket, kept as a single
-- integer, the time at which the bucket would be full.
--
-- KEYS     strings: that time, in ticks; several ones, no key twice, if their
--          limits are the same and their requests have nothing to do with each
--          other
-- ARGV[1]  ticks that an empty bucket needs to become full
-- ARGV[2]  ticks that the cost of a request is worth
-- ARGV[3]  1 if other requests for a key may have another ARGV[1], else 0
-- ARGV[4]  and on: how many requests for each of the keys, unless all are 1
--
-- A tick is a sixteenth of a microsecond by this server's clock; ticks count
-- from 1700000000 seconds after the epoch, and stay exact below 2^53.
--
-- Reply: an integer. t >= 0: taken, tokens worth t ticks are left.
--        t < 0: denied, nothing was taken, tokens worth -1 - t ticks are there.
--        With ARGV[4] two integers: how many requests pass, and t, which is
--        below zero if none does.
--        Of several keys that for each, in one array.
--
-- A key must not go before the bucket would be full. As the state alone says
-- when that is, so it does for the key: it goes at the end of the EPOCH after
-- the one in which the bucket would be full, whoever writes it, and has to be
-- told so only by the call that moves the state into another epoch.

local EPOCH = 160000000

local call, tonumber = redis.call, tonumber
local unpack = table.unpack or unpack
local floor, format = math.floor, string.format

local time = call('TIME')

local now = (time[1] - 1700000000) * 16000000 + time[2] * 16
local burst = tonumber(ARGV[1])
local cost = tonumber(ARGV[2])
local varies = ARGV[3] == '1'
local times = ARGV[4]

local WRONGTYPE = { err = 'WRONGTYPE key does not hold the state of a limit' }

-- a new key, or one that is no string: what another algorithm has kept counts
-- as gone, what is somebody else's stays
local function create(key, text, ttl)
    while not call('SET', key, text, 'PX', ttl, 'NX') do
        local kind = call('TYPE', key).ok

        if kind ~= 'zset'
           and (kind ~= 'hash' or (call('HEXISTS', key, 'tokens') == 0
                                   and call('HEXISTS', key, 'lastRefill') == 0))
        then
            return WRONGTYPE
        end

        call('DEL', key)
    end
end

local states = call('MGET', unpack(KEYS))
local reply = {}
local n = 0

-- as written last: the same for all buckets that were full, and for most keys
local text, at_was
local ttl, epoch_was

for i = 1, #KEYS do
    local key, state = KEYS[i], states[i]
    local wanted = times and tonumber(ARGV[3 + i]) or 1
    local full_at = state and tonumber(state)
    local failed

    if state and not full_at and string.sub(state, 1, 7) ~= 'tokens ' then
        failed = WRONGTYPE
    end

    local lacks = math.max(0, (full_at or now) - now)

    -- more than all of it: the clock stepped back, or the limit was larger; it
    -- has to be set right, or nobody would pass until that time has come; but
    -- not if it lacks to one whose limit is larger now
    local repair = false

    if lacks > burst then
        lacks = burst
        repair = not varies
    end

    local passed = 0

    if burst - lacks >= cost and not failed then
        passed = wanted == 1 and 1
                 or math.min(wanted, floor((burst - lacks) / cost))
        lacks = lacks + passed * cost
    end

    -- else a denied call changes nothing
    if passed > 0 or repair then
        local at = now + lacks
        local epoch = floor(at / EPOCH)

        -- in two halves, as a "%d" may have but 32 bits; and "%.0f" is slow
        if at ~= at_was then
            local half = floor(at / 100000000)

            text = half > 0 and format('%d%08d', half, at - half * 100000000)
                   or format('%.0f', at)
            at_was = at
        end

        if full_at and epoch == floor(full_at / EPOCH) and #text == #state then
            call('SETRANGE', key, '0', text)
        else
            if epoch ~= epoch_was then
                ttl = format('%.0f', ((epoch + 2) * EPOCH - now) / 16000)
                epoch_was = epoch
            end

            if state then
                call('SET', key, text, 'PX', ttl)
            else
                failed = create(key, text, ttl)
            end
        end
    end

    local left = burst - lacks

    if failed then
        if #KEYS == 1 then
            return failed
        end

        passed = 0
        left = failed
    elseif passed == 0 then
        left = -1 - left
    end

    if times then
        n = n + 1
        reply[n] = passed
    end

    n = n + 1
    reply[n] = left
end

if n == 1 then
    return reply[1]
end

return reply
