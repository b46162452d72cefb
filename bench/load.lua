-- What wrk sends in every case, so that the client costs the same in all of
-- them: GET PATH?k=NNNNNN over all keys in a fixed random order.
--
--     wrk ... -s load.lua URL -- PATH KEYS OFFSET
--
-- All requests are made before the first one is sent.  OFFSET is where in
-- that order to begin: a case goes on where its last run has ended.  Without
-- a function response() wrk does not hand answers to Lua, which would cost
-- more than all the rest; so it tells statuses above 399 from others only.

local threads = {}
local requests = {}
local n, i


function setup(thread)
    -- where in the order each thread begins: 0, 1/2, 2/3, ...
    thread:set('part', #threads / (#threads + 1))
    threads[#threads + 1] = thread
end


function init(args)
    local head = 'GET ' .. args[1] .. '?k='
    local tail = ' HTTP/1.1\r\nHost: localhost\r\n\r\n'

    n = tonumber(args[2])

    math.randomseed(1)

    for at = 1, n do
        requests[at] = string.format('%s%06d%s', head, at - 1, tail)
    end

    for at = n, 2, -1 do
        local other = math.random(at)
        requests[at], requests[other] = requests[other], requests[at]
    end

    i = math.floor(tonumber(args[3]) + part * n) % n
end


function request()
    i = i % n + 1
    return requests[i]
end


function done(summary, latency)
    local e = summary.errors

    io.write(string.format(
        'BENCH requests=%d us=%d refused=%d errors=%d'
        .. ' p50=%d p99=%d mean=%.2f\n',
        summary.requests, summary.duration, e.status,
        e.connect + e.read + e.write + e.timeout,
        latency:percentile(50), latency:percentile(99), latency.mean))
end
