-- Begins a filter, or adds fingerprints and says which were new. Follows filter.lua.
--
-- ARGV[1] seed   ARGV[2] fingerprints, flat: place, words, masks, digest   ARGV[3] blocks and capacity of each layer that
-- may come   ARGV[4] ms of the maximum age, or 0   ARGV[5..] fields and values of a filter that begins here
--
-- Returns {state as fields and values, is new, lost segments, [1 for each that was new, else 0]}; the state only if
-- there are no answers. Begins the filter if there is none. Nothing is added if its seed is another than the caller's.
local time = redis.call('TIME')
local is_new_filter = redis.call('HEXISTS', FILTER, 'format') == 0 and 1 or 0
if is_new_filter == 1 then redis.call('HSET', FILTER, unpack(ARGV, 5)) end
local seed, answers = redis.call('HGET', FILTER, 'seed'), {}
local chain = open_chain(cmsgpack.unpack(ARGV[3]), tonumber(ARGV[4]), time[1] * 1000 + floor(time[2] / 1000))
if seed == ARGV[1] then
    local keys = cmsgpack.unpack(ARGV[2])
    local has_new = false
    for i = 1, #keys, 4 do
        local is_new = chain.add(keys[i], keys[i + 1], keys[i + 2], keys[i + 3])
        has_new = has_new or is_new
        answers[#answers + 1] = is_new and 1 or 0
    end
    if has_new or chain.has_changed then chain.save() end
end
return {#answers == 0 and redis.call('HGETALL', FILTER) or {}, is_new_filter, chain.lost, answers}
