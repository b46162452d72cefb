-- ticks: the time as gcra counts it.
--
-- Gives    ticks  the time "now"
--          EPOCH  a number of ticks, see below
-- Needs    now
--
-- A tick is a sixteenth of a microsecond; ticks count from 1700000000 seconds
-- after the epoch, and stay exact below 2^53.
--
-- A key must not expire before its bucket is full. It expires at the end of
-- the EPOCH after the one in which the bucket becomes full. So the state alone
-- says when the key expires, whoever writes it, and only a call that moves the
-- state into another EPOCH has to set the time to live.

local EPOCH = 160000000

local ticks = (now - 1700000000000000) * 16
