-- integer: a whole number as text.
--
-- Gives    integer(n)  the decimal digits of n, which is below 2^53
-- Needs    format
--
-- A large number is formatted in two halves: "%d" may have 32 bits only, and
-- "%.0f" is slow.

local function integer(n)
    if n < 100000000 then
        return format('%.0f', n)
    end

    local low = n % 100000000

    return format('%d%08d', (n - low) / 100000000, low)
end
