-- digits: the numbers of a window that counts by periods, as text.
--
-- Gives    digits(count)  ten digits, which are enough for any count
--          moment(us)     a time in milliseconds, with thirteen digits
-- Needs    format
--
-- "%d" may have 32 bits only, and "%.0f" is slow.

local function digits(count)
    return format('%010d', count)
end

local function moment(us)
    local low = us / 1000 % 10000000

    return format('%06d%07d', (us / 1000 - low) / 10000000, low)
end
