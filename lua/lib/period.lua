-- period: the periods of the calendar, and windows that follow each other
-- without a gap.
--
-- Gives    period(length, shift, at)  when the period that has the moment "at"
--                                     begins and ends, as "at": microseconds
-- Needs    floor
--
-- "length" is that of all periods in microseconds, or 0 for months. "shift" is
-- in seconds. Periods begin when the time plus "shift" is a multiple of the
-- length. For months this sum is the time since March 1 of the year 0, because
-- years that begin in March end with the leap day. src/pure/ngx_rl_period.c
-- does the same.

local function days_before_year(year)
    return 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400)
end

local function days_before_month(month)
    return floor((153 * month + 2) / 5)
end

local function period(length, shift, at)
    if length > 0 then
        local start = at - (at + shift * 1000000) % length

        return start, start + length
    end

    local days = floor((floor(at / 1000000) + shift) / 86400)
    local day = days % 146097
    local year = floor((day - floor(day / 1460) + floor(day / 36524)
                        - floor(day / 146096)) / 365)
    local first = days - day + days_before_year(year)
    local month = floor((5 * (days - first) + 2) / 153)
    local start = first + days_before_month(month)
    local finish = month < 11 and first + days_before_month(month + 1)
                   or days - day + days_before_year(year + 1)

    return (start * 86400 - shift) * 1000000, (finish * 86400 - shift) * 1000000
end
