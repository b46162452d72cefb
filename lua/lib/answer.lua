-- answer: the part of a reply for one key, in the loop of a script that
-- serves each of its KEYS separately.
--
-- Gives    appends to "reply": how many requests passed, if "times" is
--          set, and "left", or -1 - left if none passed. A key that failed
--          has its error in place of "left"; the error of a single key is
--          the whole reply.
-- Needs    times, reply, length; passed, left and failed of the key

if failed then
    if #KEYS == 1 then
        return failed
    end

    passed = 0
    left = failed
elseif passed == 0 then
    left = -1 - left
end

if times then
    length = length + 1
    reply[length] = passed
end

length = length + 1
reply[length] = left
