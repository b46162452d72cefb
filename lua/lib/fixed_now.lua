-- fixed_now: which period of a fixed window counts, and how long its key lives.
--
-- Gives    fixed_now(length, shift, from, to, count)
--                         when the period that counts begins and ends, what
--                         was counted in it, and whether the state is of just
--                         this period; the state may be missing
--          fixed_text(start, finish)      what stands before the count
--          fixed_ttl(key, start, finish)  milliseconds to live, as text
-- Needs    period, now, max, min, format
--
-- A clock that is a little behind a period that has begun waits for it: if the
-- earlier period came back, its requests would not be known any more. If the
-- clock is behind by more than a minute, it was set back, and the count moves
-- to the period of the clock: nobody is locked out for longer than a period.
--
-- Many keys end with the same period. Each lives on for a time of its own, up
-- to an eighth of the period or an hour, so that they do not expire all at
-- once.

local function fixed_now(length, shift, from, to, count)
    local at = now

    if from and from > now and from - now <= 60000000 then
        at = from
    end

    local start, finish = period(length, shift, at)

    if from and from >= start then
        return start, finish, count, from == start and to == finish
    end

    return start, finish, 0, false
end

local function fixed_text(start, finish)
    return format('%013.0f:%013.0f:', start / 1000, finish / 1000)
end

local function fixed_ttl(key, start, finish)
    local spread = max(1000, min((finish - start) / 8000, 3600000))
    local part = tonumber(string.sub(redis.sha1hex(key), 1, 6), 16) / 16777216

    return format('%.0f', math.ceil((finish - now) / 1000 + spread * part))
end
