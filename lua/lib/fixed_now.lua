-- fixed_now: which period of a fixed window counts.
--
-- Gives    fixed_now(length, shift, from, to, count)
--                         when the period that counts begins and ends, what
--                         was counted in it, and whether the state is of just
--                         this period; the state may be missing
--          fixed_text(start, finish)      what stands before the count
-- Needs    period, now, moment
--
-- A clock that is a little behind a period that has begun waits for it: if the
-- earlier period came back, its requests would not be known any more. If the
-- clock is behind by more than a minute, it was set back, and the count moves
-- to the period of the clock: nobody is locked out for longer than a period.

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
    return moment(start) .. ':' .. moment(finish) .. ':'
end
