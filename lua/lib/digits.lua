-- digits: the count of a window that counts by periods, as text.
--
-- Gives    digits(count)  ten digits, which are enough for any count
-- Needs    format

local function digits(count)
    return format('%010d', count)
end
