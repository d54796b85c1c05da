-- Takes in links and acknowledges pages: looks the links up in the filter, adds and enqueues those that are new. All or
-- nothing. Follows head.lua and filter.lua.
--
-- ARGV[1] token   ARGV[2] number of this call among the worker's
-- ARGV[3] lanes, flat: slot, score, RPUSH or LPUSH
-- ARGV[4] links, flat: place (-1: not filtered), probe, number of the lane, entry
-- ARGV[5] pages to acknowledge, flat: id, items, why it is dead-lettered or "", false if a retry took its place
-- ARGV[6] probes to forget   ARGV[9] name of the list that items go to
-- ARGV[7] blocks and capacity of each layer that may come   ARGV[8] ms of the maximum age, or 0
-- 3 to 7 are in msgpack.
--
-- Returns {outstanding, seq, links that were new, pages that the worker did not have any more}; nil if the queue is gone
local token, number = ARGV[1], ARGV[2]
local links, done, forget = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5]), cmsgpack.unpack(ARGV[6])
local has_state, outstanding, seq = unpack(call('HMGET', STATE, 'format', 'outstanding', 'seq'))
if not has_state then return false end
outstanding, seq = tonumber(outstanding or 0), tonumber(seq or 0)
local function left() return tonumber(call('HGET', STATE, 'left') or 0) end
if call('HGET', CALLS, token) == number then return {outstanding - left(), seq, 0, 0} end -- its answer was lost
if #forget > 0 then call('SADD', FILTER .. ':forgotten', unpack(forget)) end
local chain = open_chain(cmsgpack.unpack(ARGV[7]), tonumber(ARGV[8]), milliseconds())

local new, queued = 0, {}
for i = 1, #links, 4 do
    if links[i] < 0 or chain.add(links[i], links[i + 1]) then
        new = new + 1
        local entries = queued[links[i + 2]] or {}
        queued[links[i + 2]] = entries
        entries[#entries + 1] = links[i + 3]
    end
end
if new == 0 then allow_when_full() end
local lane_of = cmsgpack.unpack(ARGV[3])
for i, entries in pairs(queued) do put(lane_of[3 * i - 2], lane_of[3 * i - 1], lane_of[3 * i], entries) end
chain.save()

local ids, ended, refused = {}, {}, 0
for i = 1, #done, 4 do ids[#ids + 1] = done[i] end
if #ids > 0 then
    for i, place in ipairs(call('HMGET', held(token), unpack(ids))) do
        if not place then -- the lease has run out, and another may be at it
            refused = refused + 1
        else
            ended[#ended + 1] = ids[i]
            local items, why, is_page = unpack(done, 4 * i - 2, 4 * i)
            local slot, score, _, entry = unpack(cmsgpack.unpack(place))
            if items ~= '' then call('RPUSH', STATE .. ':items:' .. ARGV[9], items) end
            if why ~= '' then bury(why, slot, score, entry) end
            if not is_page then uncount(slot) end
        end
    end
    if #ended > 0 then call('HDEL', held(token), unpack(ended)) end
end
outstanding, seq = outstanding + new - #ended, seq + new
call('HSET', STATE, 'outstanding', outstanding, 'seq', seq)
call('HSET', CALLS, token, number)
return {outstanding - left(), seq, new, refused}
