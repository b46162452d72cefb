-- answer: the part of a reply that is about one key, in the loop of a
-- script that serves each of its KEYS by itself.
--
-- Gives    more of "reply": how many requests passed, if "times" is set,
--          and "left", or -1 - left if none passed. Instead of what is
--          left, the error of a key that failed; a single key's error is
--          the whole reply.
-- Needs    times, reply, length; of the key passed, left, failed

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
