-- entry: what a window stores about a request that passed, a member of a
-- sorted set whose score is the time in microseconds.
--
-- Gives    entry_text(total, cost, seen, id)  the member, TOTAL:COST:SEEN:ID
--          entry_parse(member)                these four again, as text
-- Needs    format
--
-- TOTAL is the sum of all costs up to and including this one, SEEN the time by
-- the other clock, as text, and ID that of the call. With its sixteen digits
-- TOTAL also orders entries of the same time.

local function entry_text(total, cost, seen, id)
    return format('%016.0f:%.0f:%s:%s', total, cost, seen, id)
end

local function entry_parse(member)
    return string.match(member, '^(%d+):(%d+):(%d+):(.*)$')
end
