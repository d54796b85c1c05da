-- Renews a worker's lease, gives back what expired workers held, and hands out requests. Follows head.lua.
--
-- ARGV[1] token   ARGV[2] number of this call   ARGV[3] most requests   ARGV[4] ms of a lease   ARGV[5] crash limit
-- ARGV[6] "1": a slot's requests go to one worker at a time
-- KEYS[2] if given, a list, set or sorted set of start URLs that others push, and ARGV[7] what their entries begin with
--
-- Returns {outstanding, seq, [id, entry, ...], requests given back, of these buried}
--         {}: the lease has run out, and others have or get what the worker held
--         nil: keys of the queue are lost
local token, number, most, lease, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if call('EXISTS', STATE) == 0 then return false end
if not call('ZSCORE', WORKERS, token) then return {} end
allow_when_full()
local now = milliseconds()
-- If nobody has called for long, the server was away: no worker is to blame, and all get a new lease.
if now - tonumber(call('HGET', STATE, 'called') or now) > lease / 2 then
    for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do call('ZADD', WORKERS, now + lease, other) end
end
call('HSET', STATE, 'called', now)
call('ZADD', WORKERS, now + lease, token)

local returned, buried = 0, 0
for _, dead in ipairs(call('ZRANGEBYSCORE', WORKERS, '-inf', now, 'LIMIT', 0, 1)) do
    returned, buried = end_worker(dead, limit)
end

local me = call('HMGET', worker(token), 'take', 'took', 'suspect')

-- Returns the slots that this worker may take from, those with fewest in hand first, and how many are in hand.
local function open_slots(most_slots)
    local all = call('ZRANGE', SLOTS, 0, most_slots - 1, 'WITHSCORES')
    local names, active = {}, {}
    for i = 1, #all, 2 do names[#names + 1], active[#active + 1] = all[i], tonumber(all[i + 1]) end
    if ARGV[6] ~= '1' or #names == 0 then return names, active end
    local holders, free, busy = call('HMGET', HOLDER, unpack(names)), {}, {}
    for i, name in ipairs(names) do
        if not holders[i] or holders[i] == token then free[#free + 1], busy[#busy + 1] = name, active[i] end
    end
    return free, busy
end

local ids, places = {}, {}
local function hold(id, score, slot)
    ids[#ids + 1] = id
    places[#places + 1], places[#places + 2] = id, score .. ' ' .. slot
end

if me[1] == number then -- the answer was lost
    ids = cmsgpack.unpack(me[2])
elseif most > 0 then
    -- Requests that were in hand at a crash come one at a time, so that the next crash points at one.
    if call('EXISTS', SUSPECTS) == 1 and not (me[3] and call('HEXISTS', held(token), me[3]) == 1) then
        local id = call('ZPOPMIN', SUSPECTS)[1]
        local score, slot = string.match(call('HGET', CRASHES, id) or '', '^%d+ (%S+) (.*)$')
        if not slot then return false end
        hold(id, score, slot)
        call('HINCRBY', ACTIVE, slot, 1)
        call('HSET', worker(token), 'suspect', id)
    end
    while #ids < most do
        local names, active = open_slots(ARGV[6] == '1' and 1000 or most)
        if #names == 0 then break end
        -- One from each of those with fewest in hand, then from those with one more, until there are enough.
        local share, wanted, level = {}, most - #ids, active[1]
        while wanted > 0 do
            for i = 1, #names do
                if wanted == 0 or active[i] > level then break end
                share[i], active[i], wanted = (share[i] or 0) + 1, level + 1, wanted - 1
            end
            level = level + 1
        end
        for i, count in ipairs(share) do
            local popped = call('ZPOPMIN', lane(names[i]), count)
            for j = 1, #popped, 2 do hold(popped[j], popped[j + 1], names[i]) end
            if #popped > 0 then
                active[i] = call('HINCRBY', ACTIVE, names[i], #popped / 2)
                if ARGV[6] == '1' then call('HSET', HOLDER, names[i], token) end
            end
            if #popped == 2 * count then
                call('ZADD', SLOTS, active[i], names[i])
            else -- it is empty
                call('ZREM', SLOTS, names[i])
                if call('HEXISTS', ACTIVE, names[i]) == 0 then call('HDEL', HOLDER, names[i]) end
            end
        end
    end
    -- Nothing is pending or in hand, and yet not all is done: a key of the queue was lost.
    if #ids == 0 and call('EXISTS', SLOTS, SUSPECTS) == 0 and outstanding() > 0 then
        local in_hand = 0
        for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do in_hand = in_hand + call('HLEN', held(other)) end
        if in_hand == 0 then return false end
    end
    if #places > 0 then call('HSET', held(token), unpack(places)) end
    call('HSET', worker(token), 'take', number, 'took', cmsgpack.pack(ids))
end

if KEYS[2] and #ids == 0 and call('EXISTS', SLOTS) == 0 then
    local kind, seq = call('TYPE', KEYS[2]).ok, tonumber(call('HGET', STATE, 'seq') or 0)
    for _ = 1, most do
        local pushed = kind == 'list' and call('LPOP', KEYS[2]) or kind == 'set' and call('SPOP', KEYS[2])
            or kind == 'zset' and call('ZPOPMAX', KEYS[2])[1]
        if not pushed then break end
        seq = seq + 1
        call('HSET', REQUESTS, seq, ARGV[7] .. pushed)
        put(seq, seq, '')
    end
    call('HSET', STATE, 'seq', seq)
end

local found = {}
if #ids > 0 then
    local entries = call('HMGET', REQUESTS, unpack(ids))
    for i, id in ipairs(ids) do
        if not entries[i] then return false end
        found[#found + 1], found[#found + 2] = id, entries[i]
    end
end
return {outstanding(), tonumber(call('HGET', STATE, 'seq') or 0), found, returned, buried}
