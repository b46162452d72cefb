-- Tests whether this server can store limits: reads and writes as for a
-- bucket, and leaves nothing behind. A server that is loading, read-only or
-- out of memory, or that lacks a permission, answers with its error.
--
-- KEYS[1]  a key that nothing else uses
--
-- Reply: 1

-- Deletes only what exists: after any write, even a DEL that deletes nothing,
-- a server that is out of memory lets a script finish.

if redis.call('TYPE', KEYS[1]).ok ~= 'none' then
    redis.call('DEL', KEYS[1])
end

redis.call('HMGET', KEYS[1], 'tokens', 'lastRefill')
redis.call('HSET', KEYS[1], 'tokens', '1')
redis.call('PEXPIRE', KEYS[1], '1000')
redis.call('DEL', KEYS[1])

return 1
