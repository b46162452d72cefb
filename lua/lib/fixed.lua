-- fixed: the state of a fixed window, a string START:END:COUNT.
--
-- Gives    FIXED_COUNT               where COUNT is in the string
--          fixed_parse(state)        START and END in microseconds, and COUNT;
--                                    nil if that is not the state of a window
-- Needs    nothing
--
-- START and END are milliseconds since the epoch. All parts have as many
-- digits as they can ever have, so a new COUNT can replace an old one without
-- a change of the time to live.

local FIXED_COUNT = 28

local function fixed_parse(state)
    local from, to, count

    if type(state) == 'string' and #state == 38 then
        from, to, count = string.match(state, '^(%d+):(%d+):(%d+)$')
    end

    if from then
        return from * 1000, to * 1000, tonumber(count)
    end
end
