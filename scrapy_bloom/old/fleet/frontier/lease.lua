-- Renews a worker's leases, gives back what expired workers held, and leases requests. Follows queue.lua.
--
-- ARGV[1] token   ARGV[2] milliseconds of a lease   ARGV[3] requests wanted   ARGV[4] most workers per slot, 0: any
-- ARGV[5] crash limit   ARGV[6] most bytes of a request   ARGV[7] most bytes of all, but for the last of them
--
-- Returns {-1}: the worker is not known, or was given up
--         {1, outstanding, seq, [id, entry, ...], expired worker's name or "", requests it held, ids set aside for
--          crashes, ids set aside for their size, requests that were not on the server any more}
--
-- Slots with fewest leased requests come first. A request that was in hand at a crash is suspected of having caused
-- it: a worker holds one of those at a time, so that the next crash points at one.
local token, lease, wanted, host_workers = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not redis.call('ZSCORE', WORKERS, token) then
    return {-1}
end
allow_when_full()
local now = milliseconds()
-- If nobody has called for long, the server was away: no worker is to blame, and all get a new lease.
local called = tonumber(redis.call('HGET', STATE, 'called') or now)
if now - called > lease / 2 then
    for _, other in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
        redis.call('ZADD', WORKERS, now + lease, other)
    end
end
redis.call('HSET', STATE, 'called', now)
redis.call('ZADD', WORKERS, now + lease, token)

local name, returned, crashed = '', 0, {}
local expired = redis.call('ZRANGEBYSCORE', WORKERS, '-inf', now, 'LIMIT', 0, 1)[1]
if expired then
    returned, crashed, name = end_worker(expired, tonumber(ARGV[5]))
end

local has_suspects, holds_suspect = redis.call('EXISTS', CRASHES) == 1, false
if has_suspects and wanted > 0 then
    for _, id in ipairs(redis.call('HKEYS', held(token))) do
        holds_suspect = holds_suspect or redis.call('HEXISTS', CRASHES, id) == 1
    end
end

local function pick(slot)
    local first = redis.call('ZRANGE', lane(slot), 0, (has_suspects and holds_suspect) and 31 or 0, 'WITHSCORES')
    for i = 1, #first, 2 do
        local is_suspect = has_suspects and redis.call('HEXISTS', CRASHES, first[i]) == 1
        if not (is_suspect and holds_suspect) then
            holds_suspect = holds_suspect or is_suspect
            return first[i], first[i + 1]
        end
    end
end

local function may_hold(slot)
    return host_workers == 0 or redis.call('HEXISTS', holders(slot), token) == 1
        or redis.call('HLEN', holders(slot)) < host_workers
end

local leased, large, missing, bytes = {}, {}, 0, 0
local most_each, most_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local at = 0 -- slots before this index have nothing for this worker
while #leased < 2 * wanted and bytes < most_bytes and at < 1000 do
    local slot = redis.call('ZRANGE', SLOTS, at, at)[1]
    if not slot then
        break
    end
    local id, score
    if may_hold(slot) then
        id, score = pick(slot)
    end
    if id then
        redis.call('ZREM', lane(slot), id)
        local size = redis.call('HSTRLEN', REQUESTS, id)
        local active = tonumber(redis.call('HGET', ACTIVE, slot) or 0)
        if size == 0 then
            redis.call('HDEL', REQUESTS, id)
            missing = missing + 1
        elseif size > most_each then
            set_aside(id, score, slot, 'size')
            large[#large + 1] = id
        else
            active = redis.call('HINCRBY', ACTIVE, slot, 1)
            redis.call('HINCRBY', holders(slot), token, 1)
            redis.call('HSET', held(token), id, score .. ' ' .. slot)
            leased[#leased + 1] = id
            leased[#leased + 1] = redis.call('HGET', REQUESTS, id)
            bytes = bytes + size
        end
        if redis.call('EXISTS', lane(slot)) == 1 then
            redis.call('ZADD', SLOTS, active, slot)
        else
            redis.call('ZREM', SLOTS, slot)
        end
    else
        at = at + 1
    end
end
local seq = redis.call('HGET', STATE, 'seq') or '0'
return {1, outstanding(), seq, leased, name, returned, crashed, large, missing}
