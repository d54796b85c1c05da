-- Takes in links and acknowledges pages: looks the links up in the filter, adds and enqueues the new ones. All or
-- nothing. Follows head.lua and filter.lua.
--
-- ARGV[1] chain   ARGV[2] token, or "" of a command, whose links are all filtered
-- ARGV[3] number of this call among the worker's
-- ARGV[4] in msgpack:
--         lanes, flat: slot, score, RPUSH or LPUSH
--         links, flat: place (-1: not filtered), probe, number of the lane, entry
--         pages to acknowledge, flat: id (-1: start(); 0: the server does not know of it); why it is dead-lettered, or "";
--         false if it does not count as a page; why it has failed for good, or ""; parts: the page, and requests in memory that it led to,
--         flat: place (-1: not filtered), probe, items, links that come with it (flat: number of the lane, entry)
--         probes to forget
--         estimates, flat: process, what it knows
--         slots to slow down, flat: slot, ms of a pause, ms between two requests; 0: none
-- ARGV[5] blocks and capacity of each layer that may come, in msgpack   ARGV[6] ms of the maximum age, or 0
-- ARGV[7] name of the list that items go to   ARGV[8] number of the last pause that the worker knows of
--
-- Returns {number of new links, places of parts that are refused, paused slots that the worker does not know of, flat, each
--          with the ms that are left, number of the last of these}, or an objection
local chain_id, token, number, last_pause = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[8])
local problem = objection(chain_id, token, number - 1)
if problem then return problem end
if token ~= '' and tonumber(call('HGET', CALLS, token)) >= number then -- its answer was lost
    local of, places = string.match(call('HGET', REFUSED, token) or '', '^(%d+)(.*)')
    return {0, tonumber(of) == number and places or '', {}, last_pause}
end
local lane_of, links, pages, forget, notes, slow = unpack(cmsgpack.unpack(ARGV[4]))
if #forget > 0 then call('SADD', FILTER .. ':forgotten', unpack(forget)) end
local now = milliseconds()
local chain = open_chain(cmsgpack.unpack(ARGV[5]), tonumber(ARGV[6]), now)

local new, queued = 0, {}
local function enqueue(lane_number, entry)
    new = new + 1
    local entries = queued[lane_number] or {}
    queued[lane_number] = entries
    entries[#entries + 1] = entry
end

for i = 1, #links, 4 do
    if links[i] < 0 or chain.add(links[i], links[i + 1]) then enqueue(links[i + 2], links[i + 3]) end
end

-- Pages are looked up before anything is written, so that a full server accepts pages that bring nothing new.
local accepted, has_parts = {}, false
for i = 1, #pages, 5 do
    local id, parts = pages[i], pages[i + 4]
    if id == 0 then accepted[i] = true end
    if id == -1 then accepted[i] = call('HGET', STATE, 'start') == token end
    if id > 0 then accepted[i] = call('HGET', held(token), id) end
    for j = 1, #parts, 4 do has_parts = has_parts or parts[j] >= 0 or #parts[j + 3] > 0 end
end
if new == 0 and not has_parts then allow_when_full() end
if token ~= '' then call('HSET', CALLS, token, number) end -- fails here if the server is full

local ended, refused, place_of_part = 0, '', 0
-- Takes in a part of a page, unless the page is refused, or the part is a request that somebody else has had.
local function take_part(is_refused, place, probe, items, led_to)
    local is_new = place < 0 or call('SISMEMBER', FILTER .. ':forgotten', probe) == 1 or chain.add(place, probe)
    if is_refused or not is_new then
        refused = refused .. ' ' .. place_of_part
    else
        for j = 1, #led_to, 2 do enqueue(led_to[j], led_to[j + 1]) end
        if items ~= '' then -- the first line identifies the entry for whoever collects it
            local stamp = token .. ' ' .. ARGV[3] .. ' ' .. place_of_part .. '\n'
            call('RPUSH', STATE .. ':items:' .. ARGV[7], stamp .. items)
        end
    end
    place_of_part = place_of_part + 1
end

for i = 1, #pages, 5 do
    local id, why, is_page, failed, parts = unpack(pages, i, i + 4)
    local is_refused = not accepted[i]
    if id == -1 and not is_refused then
        call('HSET', STATE, 'start', 'done')
        is_refused = call('HINCRBY', STATE, 'starts', 1) > 1 -- an earlier run has given its items
    elseif id > 0 and not is_refused then
        call('HDEL', held(token), id)
        ended = ended + 1
        local slot, score, _, entry = unpack(cmsgpack.unpack(accepted[i]))
        count_in_hand(slot, -1)
        if why ~= '' then list(DEAD, why, slot, score, entry) end
        if failed ~= '' then list(FAILED, failed, slot, score, entry) end
        if not is_page then uncount(slot) end
    end
    for j = 1, #parts, 4 do
        take_part(is_refused, unpack(parts, j, j + 3))
    end
end
for i, entries in pairs(queued) do put(lane_of[3 * i - 2], lane_of[3 * i - 1], lane_of[3 * i], entries) end
chain.save()
if new ~= ended then call('HINCRBY', STATE, 'outstanding', new - ended) end
if new > 0 then call('HINCRBY', STATE, 'seq', new) end
if refused ~= '' then call('HSET', REFUSED, token, number .. refused) end

if #notes > 0 then call('HSET', STATE .. ':estimates', unpack(notes)) end
local paused = {}
for i = 1, #slow, 3 do
    local slot, pause, delay = unpack(slow, i, i + 2)
    if pause > 0 then
        local over = math.max(now + pause, tonumber(call('HGET', PAUSED, slot) or 0))
        call('HSET', PAUSED, slot, over)
        call('ZADD', PAUSES, call('HINCRBY', STATE, 'pauses', 1), slot)
        call('ZADD', SLOTS, 'XX', 'GT', over, slot)
    end
    if delay > 0 then call('HSET', DELAYS, slot, delay) end
end
if token ~= '' and call('EXISTS', PAUSES) == 1 then
    local since = call('ZRANGEBYSCORE', PAUSES, '(' .. last_pause, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
    for i = 1, #since, 2 do
        local left = tonumber(call('HGET', PAUSED, since[i]) or 0) - now
        if left > 0 then paused[#paused + 1], paused[#paused + 2] = since[i], left end
        last_pause = tonumber(since[i + 1])
    end
end
return {new, refused, paused, last_pause}
