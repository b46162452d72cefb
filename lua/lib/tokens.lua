-- tokens: the field of that name in the hash of a bucket.
--
-- Gives    tokens_text(microtokens)  so many tokens, with six decimals or none
-- Needs    format
--
-- Two integers are formatted in half the time that one float takes.

local function tokens_text(microtokens)
    local part = microtokens % 1000000

    if part == 0 then
        return format('%d', microtokens / 1000000)
    end

    return format('%d.%06d', (microtokens - part) / 1000000, part)
end
