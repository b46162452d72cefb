-- leap: distinguishes a clock that was set forward from a limit that was idle.
--
-- Gives    HOUR                     microseconds
--          leap(elapsed, by_other)  how much of "elapsed" must not count
-- Needs    max
--
-- Both arguments are the microseconds since the last write: "elapsed" by the
-- clock that counts, "by_other" by the other one, or nil if it is not known.
-- At most an hour counts of the time that the other clock did not see. If the
-- other clock itself was set back by an hour or more, it cannot help: then all
-- of the time counts.

local HOUR = 3600000000

local function leap(elapsed, by_other)
    if by_other and by_other > -HOUR then
        return max(0, elapsed - max(0, by_other) - HOUR)
    end

    return 0
end
