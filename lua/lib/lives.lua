-- lives: how long the key of a window that counts by periods lives.
--
-- Gives    lives(key, length, needed)  milliseconds, as text
-- Needs    max, min, format
--
-- "length" is that of the period and "needed" the time until nothing of the
-- window counts, in microseconds. Many keys end with the same period. Each
-- lives on for a time of its own, up to an eighth of the period or an hour, so
-- that they do not expire all at once.

local function lives(key, length, needed)
    local spread = max(1000, min(length / 8000, 3600000))
    local part = tonumber(string.sub(redis.sha1hex(key), 1, 6), 16) / 16777216

    return format('%.0f', math.ceil(needed / 1000 + spread * part))
end
