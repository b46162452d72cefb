-- Generic cell rate algorithm: the limits of a token bucket, stored as a
-- single integer, the time at which the bucket will be full.
--
-- KEYS     strings: that time, in ticks. There may be several different keys,
--          if their limits are the same and their requests are independent of
--          each other
-- ARGV[1]  ticks that an empty bucket needs to become full
-- ARGV[2]  ticks that the cost of a request is worth
-- ARGV[3]  1 if other requests for a key may have another ARGV[1], else 0
-- ARGV[4]  and on: the number of requests for each key, unless all are 1
--
-- A tick is a sixteenth of a microsecond by this server's clock; "ticks" below
-- says where they start, and when a key expires.
--
-- Reply: an integer. t >= 0: taken, tokens worth t ticks are left.
--        t < 0: denied, nothing was taken, tokens worth -1 - t ticks are there.
--        With ARGV[4] two integers: how many requests pass, and t, which is
--        below zero if none does.
--        Several keys: the same for each of them, in one array.

local call, tonumber = redis.call, tonumber
local unpack = table.unpack or unpack
local floor, format = math.floor, string.format

local burst = tonumber(ARGV[1])
local cost = tonumber(ARGV[2])
local varies = ARGV[3] == '1'
local times = ARGV[4]

--@ include clock
--@ include ticks
--@ include integer
--@ include leftover

local states = call('MGET', unpack(KEYS))
local reply = {}
local length = 0

-- as written last: the same for all buckets that were full, and for most keys
local text, at_was
local ttl, epoch_was

for i = 1, #KEYS do
    local key, state = KEYS[i], states[i]
    local wanted = times and tonumber(ARGV[3 + i]) or 1
    local full_at = state and tonumber(state)
    local failed

    if state and not full_at and not is_state(state) then
        failed = { err = WRONGTYPE }
    end

    local lacks = math.max(0, (full_at or ticks) - ticks)

    -- More than the whole bucket is missing: the clock stepped back, or the
    -- limit was larger. The state must be corrected, or nobody would pass
    -- until that time is reached; but not if another request may have a larger
    -- limit now.
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

    -- otherwise a denied call changes nothing
    if passed > 0 or repair then
        local at = ticks + lacks
        local epoch = floor(at / EPOCH)

        if at ~= at_was then
            text = integer(at)
            at_was = at
        end

        if full_at and epoch == floor(full_at / EPOCH) and #text == #state then
            call('SETRANGE', key, '0', text)
        else
            if epoch ~= epoch_was then
                ttl = format('%.0f', ((epoch + 2) * EPOCH - ticks) / 16000)
                epoch_was = epoch
            end

            if state then
                call('SET', key, text, 'PX', ttl)
            else
                -- MGET has seen no key, or one that is not a string
                while not failed
                      and not call('SET', key, text, 'PX', ttl, 'NX')
                do
                    failed = clear_leftover(key, 'string', { err = WRONGTYPE })
                end
            end
        end
    end

    local left = burst - lacks

    --@ include answer
end

return length == 1 and reply[1] or reply
