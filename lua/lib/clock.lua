-- clock: the time by which limits are refilled.
--
-- Gives    now  microseconds since the epoch, by this server's clock
-- Needs    call

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
