-- counter_now: what counts of a sliding window counter.
--
-- Gives    counter_now(length, from, to, previous, count)
--                         when the current period begins, what was taken in
--                         the period before and in the current one, and
--                         whether the state is of just this period; the state
--                         may be missing
--          counter_part(length, previous, rest)
--                         how much of the period before counts while so many
--                         microseconds of the current one are left
--          counter_times(length, room, previous, count, finish)
--                         microseconds until nothing of it counts, and until
--                         all of it fits into "room"
-- Needs    now, floor, max, min
--
-- A clock that is set back is followed as in "fixed".

local function counter_now(length, from, to, previous, count)
    local at = now

    if from and from > now and from - now <= 60000000 then
        at = from
    end

    local start = at - at % length

    if from and from >= start then
        return start, previous, count, from == start and to == start + length
    end

    -- the period before, or one of another length that ended in it
    if from and to > start - length then
        return start, count, 0, false
    end

    return start, 0, 0, false
end

-- rounded up
local function counter_part(length, previous, rest)
    return previous - floor(previous * (length - rest) / length)
end

local function counter_times(length, room, previous, count, finish)
    local rest = min(length, finish - now)
    local reset, wait = 0, 0

    if count > 0 then
        reset = finish - now + length
    elseif previous > 0 then
        reset = finish - now
    end

    if count > room then
        -- the next period, in which this one is the period before
        wait = finish - now + length - floor(room * length / count)
    elseif previous > 0 then
        wait = rest - floor((room - count) * length / previous)

        -- a clock that is behind has to get there first
        wait = wait > 0 and wait + finish - now - rest or 0
    end

    return reset, wait
end
