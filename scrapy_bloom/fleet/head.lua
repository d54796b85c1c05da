-- Begins every script of the queue. KEYS[1] is the state of a shard, "{prefix:shard}"; the names of its other keys
-- begin with it, and so share its hash tag:
--
--   {..}               hash: format, key_space, seed, chain, layers, count, capacity, error_rate, seq, called, shards
--   ..:bits:<chain>:<layer>:<n>   n-th megabyte of a layer's blocks
--   ..:requests        hash: id -> entry, of every request that is not done
--   ..:pending:<slot>  sorted set: id by score                 ..:slots   sorted set: slots with pending ones, by active
--   ..:active          hash: slot -> requests in hand          ..:holder  hash: slot -> token, if one worker has it alone
--   ..:workers         sorted set: token by end of its lease   ..:names   hash: name -> token of its newest life
--   ..:held:<token>    hash: id -> "score slot"                ..:worker:<token>  hash: name, take, took, suspect
--   ..:calls           hash: token -> number of its last finish call, and so what of its pages is done
--   ..:refused         set: "token id" of pages that were finished too late
--   ..:suspects        sorted set: id by score, of requests that were in hand when a worker died
--   ..:crashes         hash: id -> "count score slot"          ..:dead    hash: id -> "reason score slot"
--   ..:forgotten       set: fingerprints that may be seen once more
--
-- A script whose first write may enlarge the memory is refused by a full server at that write, when nothing has been
-- changed. One that begins by deleting something is carried out: so leases are renewed and pages acknowledged.
local STATE = KEYS[1]
local call = redis.call
local REQUESTS, SLOTS, ACTIVE, HOLDER = STATE .. ':requests', STATE .. ':slots', STATE .. ':active', STATE .. ':holder'
local WORKERS, NAMES, CALLS = STATE .. ':workers', STATE .. ':names', STATE .. ':calls'
local SUSPECTS, CRASHES, DEAD = STATE .. ':suspects', STATE .. ':crashes', STATE .. ':dead'

local function lane(slot) return STATE .. ':pending:' .. slot end
local function held(token) return STATE .. ':held:' .. token end
local function worker(token) return STATE .. ':worker:' .. token end
local function allow_when_full() call('DEL', STATE .. ':nothing') end

local function milliseconds()
    local time = call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Requests that are pending or in hand.
local function outstanding()
    return call('HLEN', REQUESTS) - call('HLEN', DEAD)
end

local function put(id, score, slot)
    call('ZADD', lane(slot), score, id)
    call('ZADD', SLOTS, call('HGET', ACTIVE, slot) or 0, slot)
end

-- Notes that *by* requests of a slot have left the hands of *token*.
local function release(slot, by, token)
    local active = call('HINCRBY', ACTIVE, slot, -by)
    if active > 0 then
        call('ZADD', SLOTS, 'XX', active, slot)
        return
    end
    call('HDEL', ACTIVE, slot)
    if not call('ZSCORE', SLOTS, slot) then
        call('HDEL', HOLDER, slot)
    else
        call('ZADD', SLOTS, 0, slot)
    end
end

local function bury(id, reason, score, slot)
    call('HSET', DEAD, id, reason .. ' ' .. score .. ' ' .. slot)
    call('HDEL', CRASHES, id)
end

-- Ends the life of a worker. What it held is pending again; with a limit above 0 it is suspected of having killed the
-- worker, and buried after so many crashes. Returns how many it held, and how many were buried.
local function end_worker(token, limit)
    local all, buried = call('HGETALL', held(token)), 0
    for i = 1, #all, 2 do
        local id, score, slot = all[i], string.match(all[i + 1], '^(%S+) (.*)$')
        local suspicion = call('HGET', CRASHES, id)
        local count = (suspicion and tonumber(string.match(suspicion, '^%d+')) or 0) + (limit > 0 and 1 or 0)
        if limit > 0 and count >= limit then
            bury(id, 'crashes', score, slot)
            buried = buried + 1
        elseif count > 0 then
            call('HSET', CRASHES, id, count .. ' ' .. score .. ' ' .. slot)
            call('ZADD', SUSPECTS, score, id)
        else
            put(id, score, slot)
        end
        release(slot, 1, token)
    end
    local name = call('HGET', worker(token), 'name') or ''
    if call('HGET', NAMES, name) == token then call('HDEL', NAMES, name) end
    call('ZREM', WORKERS, token)
    call('DEL', held(token), worker(token))
    for _, slot in ipairs(call('HKEYS', HOLDER)) do
        if call('HGET', HOLDER, slot) == token then call('HDEL', HOLDER, slot) end
    end
    return #all / 2, buried
end
