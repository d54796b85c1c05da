-- Begins every script of the queue. KEYS[1] is the state of a shard, "{prefix:shard}"; the names of its other keys
-- begin with it, and so share its hash tag:
--
--   {..}            hash: format, key_space, seed, chain, layers, count, capacity, error_rate, shards; outstanding:
--                   requests that are not done; left: of these, in full slots; seq: requests ever taken in; ids: ever
--                   handed out; called;
--                   collected:<name>: how many entries of that list of items were removed
--   ..:bits:<chain>:<layer>:<n>   n-th megabyte of a layer's blocks
--   ..:lane:<score>:<slot>        list: entries of one slot and priority, the next one last
--   ..:lanes:<slot>               sorted set: the scores of a slot's lanes, the most urgent first
--   ..:slots        sorted set: slots by the time in ms from which they may be served
--   ..:pages        hash: slot -> how many it has had, if there are limits     ..:full  set: slots that get no more
--   ..:workers      sorted set: token by end of its lease      ..:names    hash: name -> token of its newest life
--   ..:held:<token> hash: id -> {slot, score, crashes, entry}  ..:worker:<token>  hash: name, last, suspect
--   ..:suspects     list: the same, of requests that were in hand when a worker died
--   ..:dead         list: {reason, slot, score, entry}         ..:items:<name>  list: items of pages, to be collected
--   ..:calls        hash: token -> number of its last finish   ..:forgotten  set: what may be seen once more
--
-- A script whose first write may enlarge the memory is refused by a full server at that write, when nothing has been
-- changed. One that begins by deleting something is carried out: so leases are renewed and pages acknowledged.
local STATE, call = KEYS[1], redis.call
local SLOTS, WORKERS, NAMES, CALLS = STATE .. ':slots', STATE .. ':workers', STATE .. ':names', STATE .. ':calls'
local SUSPECTS, DEAD, PAGES, FULL = STATE .. ':suspects', STATE .. ':dead', STATE .. ':pages', STATE .. ':full'

local function lane(slot, score) return STATE .. ':lane:' .. score .. ':' .. slot end
local function lanes(slot) return STATE .. ':lanes:' .. slot end
local function held(token) return STATE .. ':held:' .. token end
local function worker(token) return STATE .. ':worker:' .. token end
local function allow_when_full() call('DEL', STATE .. ':nothing') end

local function milliseconds()
    local time = call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Puts entries into a lane, at the end that *push* names: RPUSH makes the last one the next.
local function put(slot, score, push, entries)
    local is_full = call('SISMEMBER', FULL, slot) == 1
    if call(push, lane(slot, score), unpack(entries)) == #entries then -- it was empty
        call('ZADD', lanes(slot), score, score)
        if not is_full then call('ZADD', SLOTS, 'NX', 0, slot) end
    end
    if is_full then call('HINCRBY', STATE, 'left', #entries) end
end

local function waiting(slot)
    local total = 0
    for _, score in ipairs(call('ZRANGE', lanes(slot), 0, -1)) do total = total + call('LLEN', lane(slot, score)) end
    return total
end

-- Lets a slot be served again; if it still is full, the next look at it finds that.
local function reopen(slot)
    if call('SREM', FULL, slot) == 1 then
        call('HINCRBY', STATE, 'left', 0 - waiting(slot)) -- never -0, which is no integer to Redis
        call('ZADD', SLOTS, 'NX', 0, slot)
    end
end

-- Takes back a page of a slot, which was counted and did not come.
local function uncount(slot)
    if call('HEXISTS', PAGES, slot) == 1 then call('HINCRBY', PAGES, slot, -1) end
    reopen(slot)
end

-- Dead-letters a request, which does not count as outstanding from then on.
local function bury(reason, slot, score, entry)
    call('RPUSH', DEAD, cmsgpack.pack({reason, slot, score, entry}))
end

local CRASH_LIMIT = 3 -- a request that was in hand when a worker died, this many times, is dead-lettered

-- Ends the life of a worker. What it held is pending again, in its old order; after a crash it is suspected of having
-- killed the worker, and buried after several. Returns how many it held, and how many were buried.
local function end_worker(token, is_crash)
    local all, ids, buried = call('HGETALL', held(token)), {}, 0
    for i = 1, #all, 2 do ids[#ids + 1] = {tonumber(all[i]), all[i + 1]} end
    table.sort(ids, function(a, b) return a[1] > b[1] end)
    for _, pair in ipairs(ids) do
        local slot, score, crashes, entry = unpack(cmsgpack.unpack(pair[2]))
        if is_crash then crashes = crashes + 1 end
        if crashes >= CRASH_LIMIT then
            bury('crashes', slot, score, entry)
            buried = buried + 1
        elseif crashes > 0 then -- and still counts as a page
            call('RPUSH', SUSPECTS, cmsgpack.pack({slot, score, crashes, entry}))
        else
            uncount(slot)
            put(slot, score, 'RPUSH', {entry})
        end
    end
    local name = call('HGET', worker(token), 'name') or ''
    if call('HGET', NAMES, name) == token then call('HDEL', NAMES, name) end
    call('ZREM', WORKERS, token)
    call('DEL', held(token), worker(token))
    if buried > 0 then call('HINCRBY', STATE, 'outstanding', -buried) end
    return #ids, buried
end
