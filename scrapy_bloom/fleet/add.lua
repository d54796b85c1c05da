-- Adds fingerprints to a filter that has no queue, and says which were new. Follows filter.lua.
--
-- ARGV[1] seed and ARGV[2] chain of a filter that begins here   ARGV[3] fingerprints, flat: place, words, masks, digest
-- ARGV[4] blocks and capacity of each layer that may come   ARGV[5] ms of the maximum age, or 0   ARGV[6] format
--
-- Returns {format, seed, lost segments, [1 for each that was new, else 0]}; begins the filter if there is none. Nothing
-- is added if the seed is another than the caller's.
local time = redis.call('TIME')
local begun = redis.call('HEXISTS', FILTER, 'format') == 0
if begun then redis.call('HSET', FILTER, 'format', ARGV[6], 'seed', ARGV[1], 'chain', ARGV[2]) end
local seed, answers = redis.call('HGET', FILTER, 'seed'), {}
local chain = open_chain(cmsgpack.unpack(ARGV[4]), tonumber(ARGV[5]), time[1] * 1000 + floor(time[2] / 1000))
if seed == ARGV[1] then
    local keys = cmsgpack.unpack(ARGV[3])
    local has_new = false
    for i = 1, #keys, 4 do
        local is_new = chain.add(keys[i], keys[i + 1], keys[i + 2], keys[i + 3])
        has_new = has_new or is_new
        answers[#answers + 1] = is_new and 1 or 0
    end
    if has_new or chain.has_changed then chain.save() end
end
return {redis.call('HGET', FILTER, 'format'), seed, chain.lost, answers}
