-- counter: the state of a sliding window counter, a string
-- START:END:PREVIOUS:COUNT.
--
-- Gives    counter_parse(state)  START and END in microseconds, PREVIOUS and
--                                COUNT; nil if that is not the state of one
--          counter_text(start, finish, previous)
--                                the string before COUNT
-- Needs    format, moment
--
-- START and END are those of the current period, as in "fixed". COUNT is what
-- was taken in it, with ten digits, and PREVIOUS what was taken in the period
-- before.

local function counter_parse(state)
    local from, to, previous, count

    if type(state) == 'string' and #state >= 40 then
        from, to, previous, count
            = string.match(state, '^(%d+):(%d+):(%d+):(%d%d%d%d%d%d%d%d%d%d)$')
    end

    if from then
        return from * 1000, to * 1000, tonumber(previous), tonumber(count)
    end
end

local function counter_text(start, finish, previous)
    return moment(start) .. ':' .. moment(finish)
           .. format(':%d:', previous)
end
