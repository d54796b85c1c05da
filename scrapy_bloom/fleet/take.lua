-- Renews a worker's lease, gives back what expired workers held, and hands out requests. Follows head.lua.
--
-- ARGV[1] chain   ARGV[2] token   ARGV[3] number of its last call that was answered
-- ARGV[4] newest id that the worker knows of   ARGV[5] most requests   ARGV[6] ms of a lease
-- ARGV[7] slots to serve last, in msgpack
-- ARGV[8] ms between two requests   ARGV[9] most pages, or -1: of slots that the settings do not name
-- ARGV[10] "1" if the worker can run start()
-- KEYS[2] if given, a list, set or sorted set of start URLs that others push
--
-- Returns {is anything pending or in hand, seq, [id, slot, entry, ...], requests given back, of these buried, requests
--          left in full slots once nothing else is there, slots that are full now, whether it runs start() from now on}
--         or an objection; here also "lease" (it has run out) or "lost" (keys of the queue are missing)
local chain, token, most, lease = ARGV[1], ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local later, usual_delay, usual_limit = cmsgpack.unpack(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local problem = objection(chain, token, tonumber(ARGV[3]))
if problem then return problem end
if not call('ZSCORE', WORKERS, token) then return 'lease' end
local known, suspect = unpack(call('HMGET', worker(token), 'last', 'suspect'))
if tonumber(known or 0) < tonumber(ARGV[4]) then return 'back' end
allow_when_full()
local now, called, id, start = milliseconds(), unpack(call('HMGET', STATE, 'called', 'ids', 'start'))
-- If nobody has called for long, the server was away: no worker is to blame, and all get a new lease.
if now - tonumber(called or now) > lease / 2 then
    for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do call('ZADD', WORKERS, now + lease, other) end
end
call('HSET', STATE, 'called', now)
call('ZADD', WORKERS, now + lease, token)
local returned, buried = 0, 0
for _, dead in ipairs(call('ZRANGEBYSCORE', WORKERS, '-inf', now, 'LIMIT', 0, 1)) do
    returned, buried = end_worker(dead, true)
end

local MOST_SLOTS = 2000 -- that a call looks at: more may be empty
local found, last_id = {}, tonumber(id or 0)
local function hold(slot, packed, entry)
    last_id = last_id + 1
    found[#found + 1], found[#found + 2], found[#found + 3] = last_id, slot, entry
    call('HSET', held(token), last_id, packed)
    count_in_hand(slot, 1)
end

-- Holds up to *count* requests of a slot, of its most urgent lanes; returns how many.
local function serve(slot, count)
    local taken = 0
    while taken < count do
        local score = call('ZRANGE', lanes(slot), 0, 0)[1]
        if not score then break end
        local entries = call('RPOP', lane(slot, score), count - taken) or {}
        for _, entry in ipairs(entries) do hold(slot, cmsgpack.pack({slot, score, 0, entry}), entry) end
        if #entries < count - taken or call('EXISTS', lane(slot, score)) == 0 then
            call('ZREM', lanes(slot), score)
        end
        taken = taken + #entries
    end
    return taken
end

-- Returns how many requests of a slot may be handed out, at most *count*.
local function room(slot, count)
    local limit = said(LIMITS, slot) or usual_limit
    if limit < 0 or slot == '' then return count end
    return math.min(count, limit - tonumber(call('HGET', PAGES, slot) or 0))
end

-- Returns how many requests of a slot all workers may have in hand in addition to what they have.
local function share(slot)
    local most_in_hand = said(SHARES, slot)
    return most_in_hand and most_in_hand - tonumber(call('HGET', IN_HAND, slot) or 0) or math.huge
end

-- Returns slots that may be served, in the order in which they were served last; the slots *later* only if no others.
local function next_slots()
    local first, last = {}, {}
    for _, slot in ipairs(call('ZRANGEBYSCORE', SLOTS, '-inf', now, 'LIMIT', 0, most + #later)) do
        if later[slot] then last[#last + 1] = slot else first[#first + 1] = slot end
    end
    return #first > 0 and first or last
end

-- Serves a slot whose turn it is, with *fair* requests if it has no delay; returns it if it is full.
local function serve_in_turn(slot, fair)
    if #found >= 3 * most then return end
    local delay = said(DELAYS, slot) or usual_delay
    if said(PAUSED, slot) then -- its pause is over
        call('HDEL', PAUSED, slot)
        call('ZREM', PAUSES, slot)
    end
    -- With a delay, what a slot may have within a second goes to one worker.
    local each = delay > 0 and math.max(1, math.floor(1000 / delay)) or fair
    local free = share(slot)
    if free <= 0 then
        call('ZADD', SLOTS, now + 100, slot) -- to look at it again
        return
    end
    local count = room(slot, math.min(each, most - #found / 3, free))
    local taken = serve(slot, count)
    if taken > 0 then
        if usual_limit >= 0 or said(LIMITS, slot) then call('HINCRBY', PAGES, slot, taken) end
        if delay > 0 or call('EXISTS', lanes(slot)) == 1 then
            call('ZADD', SLOTS, now + delay * taken, slot)
        else
            call('ZREM', SLOTS, slot)
        end
    else
        call('ZREM', SLOTS, slot)
        if count > 0 then return end -- it is empty
        call('SADD', FULL, slot)
        return slot
    end
end

local full = {}
if known and tonumber(known) > tonumber(ARGV[4]) then -- the last answer was lost
    local all = call('HGETALL', held(token))
    for i = 1, #all, 2 do
        if tonumber(all[i]) > tonumber(ARGV[4]) then
            local slot, _, _, entry = unpack(cmsgpack.unpack(all[i + 1]))
            found[#found + 1], found[#found + 2], found[#found + 3] = tonumber(all[i]), slot, entry
        end
    end
elseif most > 0 then
    -- Requests that were in hand at a crash come one at a time, so that the next crash points at one.
    local next_suspect = not (suspect and call('HEXISTS', held(token), suspect) == 1) and call('HRANDFIELD', SUSPECTS)
    if next_suspect then
        local packed = call('HGET', SUSPECTS, next_suspect)
        local slot, _, _, entry = unpack(cmsgpack.unpack(packed))
        if (said(PAUSED, slot) or 0) <= now then
            call('HDEL', SUSPECTS, next_suspect)
            hold(slot, packed, entry)
            call('HSET', worker(token), 'suspect', last_id)
        end
    end
    for _, slot in ipairs(later) do later[slot] = true end
    local looks = 0
    while #found < 3 * most and looks < MOST_SLOTS do
        local slots = next_slots()
        if #slots == 0 then break end
        looks = looks + #slots
        local fair = math.ceil((most - #found / 3) / #slots)
        for _, slot in ipairs(slots) do full[#full + 1] = serve_in_turn(slot, fair) end
    end
    if last_id > tonumber(id or 0) then
        call('HSET', worker(token), 'last', last_id)
        call('HSET', STATE, 'ids', last_id)
    end
end
if start == 'pending' and ARGV[10] == '1' then
    call('HSET', STATE, 'start', token)
    start = token
end

-- Returns whether anything is pending or in hand; full slots do not count.
local function is_busy()
    if #found > 0 or (start and start ~= 'done') or call('EXISTS', SUSPECTS) == 1 then return true end
    for _, slot in ipairs(call('ZRANGE', SLOTS, 0, 99)) do
        if call('EXISTS', lanes(slot)) == 1 then return true end
    end
    for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do
        if call('EXISTS', held(other)) == 1 then return true end
    end
    return call('ZCARD', SLOTS) > 100
end

-- Returns how many requests are pending of full slots. While nothing else is, it changes only with *counts*.
local function in_full_slots(counts)
    local number, counted_at = unpack(call('HMGET', STATE, 'left', 'left-at'))
    if counted_at == counts then return tonumber(number) end
    local total = 0
    for _, slot in ipairs(call('SMEMBERS', FULL)) do
        for _, score in ipairs(call('ZRANGE', lanes(slot), 0, -1)) do total = total + call('LLEN', lane(slot, score)) end
    end
    call('HSET', STATE, 'left', total, 'left-at', counts)
    return total
end

local left, busy = 0, most == 0 or is_busy() -- a pure heartbeat does not need this
local outstanding, seq = unpack(call('HMGET', STATE, 'outstanding', 'seq'))
if not busy then
    left = in_full_slots(tostring(seq) .. ' ' .. tostring(outstanding))
    if tonumber(outstanding or 0) > left then return 'lost' end
    local pushed, kind = 0, KEYS[2] and call('TYPE', KEYS[2]).ok
    for _ = 1, KEYS[2] and most or 0 do
        local value = kind == 'list' and call('LPOP', KEYS[2]) or kind == 'set' and call('SPOP', KEYS[2])
            or kind == 'zset' and call('ZPOPMAX', KEYS[2])[1]
        if not value then break end
        put('', '0', 'LPUSH', {'U' .. value}) -- see entry.py
        pushed, busy = pushed + 1, true
    end
    if pushed > 0 then
        seq = call('HINCRBY', STATE, 'seq', pushed)
        call('HINCRBY', STATE, 'outstanding', pushed)
    end
end
return {busy and 1 or 0, tonumber(seq or 0), found, returned, buried, left, full, start == token and 1 or 0}
