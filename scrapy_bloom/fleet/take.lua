-- Renews a worker's lease, gives back what expired workers held, and hands out requests. Follows head.lua.
--
-- ARGV[1] token   ARGV[2] newest id that the worker knows of   ARGV[3] most requests   ARGV[4] ms of a lease
-- ARGV[5] ms between two requests of a slot, or 0   ARGV[6] slots to serve last, in msgpack
-- ARGV[7] limits to the pages of slots, in msgpack; "*": of others; false: none
-- KEYS[2] if given, a list, set or sorted set of start URLs that others push
--
-- Returns {outstanding, seq, [id, slot, entry, ...], requests given back, of these buried, requests left in full slots,
--          slots that are full now}
--         {}: the lease has run out, and others have or get what the worker held
--         nil: keys of the queue are lost
local token, most, lease, delay = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local has_state, called, id = unpack(call('HMGET', STATE, 'format', 'called', 'ids'))
if not has_state then return false end
if not call('ZSCORE', WORKERS, token) then return {} end
allow_when_full()
local now = milliseconds()
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

local found, last_id = {}, tonumber(id or 0)
local function hold(slot, score, crashes, entry)
    last_id = last_id + 1
    found[#found + 1], found[#found + 2], found[#found + 3] = last_id, slot, entry
    call('HSET', held(token), last_id, cmsgpack.pack({slot, score, crashes, entry}))
end

-- Holds up to *count* requests of a slot, of its most urgent lanes; returns how many.
local function serve(slot, count)
    local taken = 0
    while taken < count do
        local score = call('ZRANGE', lanes(slot), 0, 0)[1]
        if not score then break end
        local entries = call('RPOP', lane(slot, score), count - taken) or {}
        for _, entry in ipairs(entries) do hold(slot, score, 0, entry) end
        taken = taken + #entries
        if taken < count then call('ZREM', lanes(slot), score) end
    end
    return taken
end

local limits, full = cmsgpack.unpack(ARGV[7]), {}

-- Returns how many requests of a slot may be handed out, at most *count*.
local function room(slot, count)
    local limit = limits[slot]
    if limit == nil then limit = limits['*'] end
    if not limit or slot == '' then return count end
    return math.min(count, limit - tonumber(call('HGET', PAGES, slot) or 0))
end

-- Returns slots that may be served, those that were not served for longest first; those to serve last, if no others.
local function next_slots(later)
    local first, last = {}, {}
    for _, slot in ipairs(call('ZRANGEBYSCORE', SLOTS, '-inf', now, 'LIMIT', 0, most + #later)) do
        if later[slot] then last[#last + 1] = slot else first[#first + 1] = slot end
    end
    return #first > 0 and first or last
end

local known, suspect = unpack(call('HMGET', worker(token), 'last', 'suspect'))
if known and tonumber(known) > tonumber(ARGV[2]) then -- the last answer was lost
    local all = call('HGETALL', held(token))
    for i = 1, #all, 2 do
        if tonumber(all[i]) > tonumber(ARGV[2]) then
            local slot, _, _, entry = unpack(cmsgpack.unpack(all[i + 1]))
            found[#found + 1], found[#found + 2], found[#found + 3] = tonumber(all[i]), slot, entry
        end
    end
elseif most > 0 then
    -- Requests that were in hand at a crash come one at a time, so that the next crash points at one.
    if not (suspect and call('HEXISTS', held(token), suspect) == 1) then
        local packed = call('RPOP', SUSPECTS)
        if packed then
            hold(unpack(cmsgpack.unpack(packed)))
            call('HSET', worker(token), 'suspect', last_id)
        end
    end
    local later = cmsgpack.unpack(ARGV[6])
    for _, slot in ipairs(later) do later[slot] = true end
    while #found < 3 * most do
        local slots = next_slots(later)
        if #slots == 0 then break end
        -- With a delay, what a slot may have within a second goes to one worker.
        local each = delay > 0 and math.max(1, math.floor(1000 / delay)) or math.ceil((most - #found / 3) / #slots)
        for _, slot in ipairs(slots) do
            local wanted = math.min(each, most - #found / 3)
            local count = room(slot, wanted)
            local taken = serve(slot, count)
            if next(limits) and taken > 0 then call('HINCRBY', PAGES, slot, taken) end
            if taken > 0 then
                call('ZADD', SLOTS, now + delay * taken, slot)
            elseif count <= 0 and count < wanted then
                full[#full + 1] = slot
                call('ZREM', SLOTS, slot)
                call('SADD', FULL, slot)
                call('HINCRBY', STATE, 'left', waiting(slot))
            elseif #found < 3 * most then
                call('ZREM', SLOTS, slot)
            end
        end
    end
    if #found > 0 then
        call('HSET', worker(token), 'last', last_id)
        call('HSET', STATE, 'ids', last_id)
    end
end

local counts = call('HMGET', STATE, 'outstanding', 'seq', 'left')
local outstanding, seq, left = tonumber(counts[1] or 0), tonumber(counts[2] or 0), tonumber(counts[3] or 0)
if most > 0 and #found == 0 and call('EXISTS', SLOTS, SUSPECTS) == 0 then
    -- Nothing is pending or in hand, and yet not all is done: a key of the queue was lost.
    local in_hand = 0
    for _, other in ipairs(call('ZRANGE', WORKERS, 0, -1)) do in_hand = in_hand + call('HLEN', held(other)) end
    if outstanding > left and in_hand == 0 then return false end
    local kind = KEYS[2] and call('TYPE', KEYS[2]).ok
    for _ = 1, KEYS[2] and most or 0 do
        local pushed = kind == 'list' and call('LPOP', KEYS[2]) or kind == 'set' and call('SPOP', KEYS[2])
            or kind == 'zset' and call('ZPOPMAX', KEYS[2])[1]
        if not pushed then break end
        put('', '0', 'LPUSH', {'U' .. pushed}) -- see entry.py
        outstanding, seq = outstanding + 1, seq + 1
    end
    call('HSET', STATE, 'outstanding', outstanding, 'seq', seq)
end
return {outstanding - left, seq, found, returned, buried, left, full}
