-- Takes in links and acknowledges pages: looks the links up in the filter, adds and enqueues the new ones. All or
-- nothing. Follows head.lua and filter.lua.
--
-- ARGV[1] chain   ARGV[2] token, or "" of a command, whose links are all filtered
-- ARGV[3] number of this call among the worker's
-- ARGV[4] lanes, flat: slot, score, RPUSH or LPUSH
-- ARGV[5] links, flat: place (-1: not filtered), probe, number of the lane, entry
-- ARGV[6] pages to acknowledge, flat: id (0: only take its items); token of an earlier life whose lease ran out, or "";
--         entry if it is of an earlier life, or ""; items; why it is dead-lettered, or ""; false if it is no page;
--         why it has failed for good, or ""
-- ARGV[7] probes to forget   ARGV[8] claims, flat: place, probe, whether it is done
-- ARGV[9] estimates, flat: process, what it knows   ARGV[10] slots to slow down, flat: slot, ms of a pause, ms between
--         two requests
-- ARGV[11] blocks and capacity of each layer that may come   ARGV[12] ms of the maximum age, or 0
-- ARGV[13] name of the list that items go to
-- 4 to 11 are in msgpack.
--
-- Returns {number of new links, places of pages that the worker no longer held, answers to claims (see messages.py),
--          paused slots of requests that the worker holds, flat, each with the ms that are left,
--          places of links whose page a worker has claimed; {-1}: perhaps of all}, or an objection
local chain_id, token, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local problem = objection(chain_id, token, number - 1)
if problem then return problem end
if token ~= '' and tonumber(call('HGET', CALLS, token)) >= number then -- its answer was lost
    local of, places = string.match(call('HGET', REFUSED, token) or '', '^(%d+)(.*)')
    return {0, tonumber(of) == number and places or '', {}, {}, {-1}}
end
local links, done, forget = cmsgpack.unpack(ARGV[5]), cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7])
if #forget > 0 then call('SADD', FILTER .. ':forgotten', unpack(forget)) end
local chain = open_chain(cmsgpack.unpack(ARGV[11]), tonumber(ARGV[12]), milliseconds())

local claimants = {}
for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do
    if other ~= token and call('EXISTS', claims(other)) == 1 then claimants[#claimants + 1] = other end
end
local function is_claimed_by_another(probe)
    for _, other in ipairs(claimants) do
        if call('SISMEMBER', claims(other), probe) == 1 then return true end
    end
end

local new, queued, taken = 0, {}, {}
for i = 1, #links, 4 do
    if links[i] >= 0 and is_claimed_by_another(links[i + 1]) then -- if that worker dies, the page that led it there comes again
        taken[#taken + 1] = (i - 1) / 4
    elseif links[i] < 0 or chain.add(links[i], links[i + 1]) then
        new = new + 1
        local entries = queued[links[i + 2]] or {}
        queued[links[i + 2]] = entries
        entries[#entries + 1] = links[i + 3]
    end
end

-- Returns the answer to a claim: 2 if the request is done, 0 if another worker has it, 1 if it is granted to this one.
local function answer(place, probe)
    if chain.has(place, probe) then return 2 end
    if is_claimed_by_another(probe) then return 0 end
    call('SADD', claims(token), probe)
    return 1
end

local answers, claimed = {}, cmsgpack.unpack(ARGV[8])
for i = 1, #claimed, 3 do
    local place, probe, is_done = unpack(claimed, i, i + 2)
    if not is_done then
        answers[#answers + 1] = answer(place, probe)
    elseif call('SREM', claims(token), probe) == 1 then -- otherwise the claim has ended, and with it what it led to
        if call('SISMEMBER', FILTER .. ':forgotten', probe) == 0 then chain.add(place, probe) end
    end
end
if new == 0 and #claimed == 0 then allow_when_full() end
local lane_of = cmsgpack.unpack(ARGV[4])
for i, entries in pairs(queued) do put(lane_of[3 * i - 2], lane_of[3 * i - 1], lane_of[3 * i], entries) end
chain.save()

-- Returns where a request is that the worker had in its last life, and that nobody has done since: hash, id, value.
local function find(life, entry)
    local keys = {SUSPECTS}
    for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do keys[#keys + 1] = held(other) end
    for _, key in ipairs(keys) do
        local all = call('HGETALL', key)
        for i = 1, #all, 2 do
            local _, _, lost, here = unpack(cmsgpack.unpack(all[i + 1]))
            if here == entry and string.find(lost, life, 1, true) then return key, all[i], all[i + 1] end
        end
    end
end

local ended, refused = 0, ''
for i = 1, #done, 7 do
    local id, life, entry, items, why, is_page, failed = unpack(done, i, i + 6)
    local key, place = held(token), life == '' and call('HGET', held(token), id)
    if life ~= '' then key, id, place = find(life, entry) end
    if place then
        call('HDEL', key, id)
        ended = ended + 1
        local slot, score, lost, written = unpack(cmsgpack.unpack(place))
        if why ~= '' then bury(why, id, slot, score, lost, written) end
        if failed ~= '' then list_failed(failed, slot, score, written) end
        if not is_page then uncount(slot) end
    elseif id ~= 0 then -- the lease has run out, and another may be at it
        refused = refused .. ' ' .. (i - 1) / 7
    end
    if items ~= '' and (place or id == 0) then -- the first line identifies the entry for whoever collects it
        call('RPUSH', STATE .. ':items:' .. ARGV[13], token .. ' ' .. ARGV[3] .. ' ' .. i .. '\n' .. items)
    end
end
if new ~= ended then call('HINCRBY', STATE, 'outstanding', new - ended) end
if new > 0 then call('HINCRBY', STATE, 'seq', new) end
if token ~= '' then call('HSET', CALLS, token, number) end
if refused ~= '' then call('HSET', REFUSED, token, number .. refused) end

local notes = cmsgpack.unpack(ARGV[9])
if #notes > 0 then call('HSET', STATE .. ':estimates', unpack(notes)) end
local now, slow, paused = milliseconds(), cmsgpack.unpack(ARGV[10]), {}
for i = 1, #slow, 3 do
    local slot, pause, delay = unpack(slow, i, i + 2)
    if pause > 0 then
        local over = math.max(now + pause, tonumber(call('HGET', PAUSED, slot) or 0))
        call('HSET', PAUSED, slot, over)
        call('ZADD', SLOTS, 'XX', 'GT', over, slot)
    end
    if delay > 0 then call('HSET', DELAYS, slot, delay) end
end
if call('EXISTS', PAUSED) == 1 then
    local looked_at = {}
    for _, packed in ipairs(call('HVALS', held(token))) do
        local slot = cmsgpack.unpack(packed)[1]
        local over = not looked_at[slot] and tonumber(call('HGET', PAUSED, slot) or 0) or 0
        looked_at[slot] = true
        if over > now then paused[#paused + 1], paused[#paused + 2] = slot, over - now end
    end
end
return {new, refused, answers, paused, taken}
