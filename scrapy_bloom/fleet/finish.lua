-- Takes in links and acknowledges pages: looks the links up in the filter, adds and enqueues those that are new. All or
-- nothing. Follows head.lua and filter.lua.
--
-- ARGV[1] token   ARGV[2] number of this call among the worker's   ARGV[3] ids to acknowledge
-- ARGV[4] links, flat: place (-1: not filtered), words, masks, digest, slot, score, sign of the order in time, entry
-- ARGV[5] blocks and capacity of each layer that may come   ARGV[6] ms of the maximum age, or 0
-- ARGV[7] digests to forget   ARGV[8] set of those to acknowledge that are dead-lettered
-- 3 to 5, 7 and 8 are in msgpack.
--
-- Returns {outstanding, seq, links that were new, pages that the worker did not have any more}; nil if the queue is gone
local token, number, done, links = ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
local forget, unreadable = cmsgpack.unpack(ARGV[7]), cmsgpack.unpack(ARGV[8])
if call('EXISTS', STATE) == 0 then return false end
local seq = tonumber(call('HGET', STATE, 'seq') or 0)
if call('HGET', CALLS, token) == number then return {outstanding(), seq, 0, 0} end -- its answer was lost
if #forget > 0 then call('SADD', FILTER .. ':forgotten', unpack(forget)) end
local chain = open_chain(cmsgpack.unpack(ARGV[5]), tonumber(ARGV[6]), milliseconds())

local rows, queued, taken = {}, {}, 0
for i = 1, #links, 8 do
    local place = links[i]
    if place < 0 or chain.add(place, links[i + 1], links[i + 2], links[i + 3]) then
        seq, taken = seq + 1, taken + 1
        rows[#rows + 1], rows[#rows + 2] = seq, links[i + 7]
        local slot = links[i + 4]
        local pending = queued[slot] or {}
        queued[slot] = pending
        pending[#pending + 1], pending[#pending + 2] = links[i + 5] + links[i + 6] * seq, seq
    end
end
if taken > 0 then
    call('HSET', REQUESTS, unpack(rows)) -- callers send a few hundred; Lua can unpack 8,000
    for slot, pending in pairs(queued) do
        call('ZADD', lane(slot), unpack(pending))
        call('ZADD', SLOTS, call('HGET', ACTIVE, slot) or 0, slot)
    end
    call('HSET', STATE, 'seq', seq)
else
    allow_when_full()
end
chain.save()

local refused, left = 0, {}
if #done > 0 then
    local places, ended = call('HMGET', held(token), unpack(done)), {}
    for i, id in ipairs(done) do
        if places[i] then
            local score, slot = string.match(places[i], '^(%S+) (.*)$')
            left[slot] = (left[slot] or 0) + 1
            if unreadable[id] then
                call('HDEL', held(token), id)
                bury(id, 'unreadable', score, slot)
            else
                ended[#ended + 1] = id
            end
        else -- the lease has run out, and another may be at it
            refused = refused + 1
            call('SADD', STATE .. ':refused', token .. ' ' .. id)
        end
    end
    if #ended > 0 then
        call('HDEL', held(token), unpack(ended))
        call('HDEL', REQUESTS, unpack(ended))
        if call('EXISTS', CRASHES) == 1 then call('HDEL', CRASHES, unpack(ended)) end
    end
    for slot, by in pairs(left) do release(slot, by, token) end
end
call('HSET', CALLS, token, number)
return {outstanding(), seq, taken, refused}
