-- Begins a filter if there is none, and adds keys. Follows filter.lua.
--
-- ARGV[1] keys, flat: place, probe   ARGV[2] blocks and capacity of each layer that may come
-- ARGV[3] ms of the maximum age, or 0   ARGV[4..] fields and values of a filter that begins here
--
-- Returns for each whether it was new
redis.call('EXISTS', FILTER, FILTER .. ':nothing') -- ends the script while a cluster moves the keys: see head.lua
if redis.call('HEXISTS', FILTER, 'format') == 0 then redis.call('HSET', FILTER, unpack(ARGV, 4)) end
local time, keys, answers = redis.call('TIME'), cmsgpack.unpack(ARGV[1]), {}
local chain = open_chain(cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3]), time[1] * 1000 + floor(time[2] / 1000))
for i = 1, #keys, 2 do
    answers[#answers + 1] = chain.add(keys[i], keys[i + 1]) and 1 or 0
end
chain.save()
return answers
