-- What the scripts of the queue have in common: begins each of them. queue.py describes the keys.
--
-- KEYS[1] is the state of a shard. The names of the other keys begin as its name does, and have its hash tag.
--
-- A script whose first write may enlarge the memory (HSET, ZADD, ...) is refused by a full server at that write, when
-- nothing has been changed. One that begins by deleting something is carried out: that is how leases are renewed and
-- pages acknowledged when there is no room for new requests.
local STATE = KEYS[1]
local base = string.sub(STATE, 1, -1 - #'queue')
local REQUESTS, SLOTS, ACTIVE, WORKERS = base .. 'requests', base .. 'slots', base .. 'active', base .. 'workers'
local NAMES, CRASHES, ASIDE = base .. 'names', base .. 'crashes', base .. 'aside'

local function lane(slot)
    return base .. 'slot:' .. slot
end

local function held(token)
    return base .. 'held:' .. token
end

local function holders(slot)
    return base .. 'holders:' .. slot
end

local function allow_when_full()
    redis.call('DEL', base .. 'nothing')
end

local function milliseconds()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Requests that are pending or leased.
local function outstanding()
    return redis.call('HLEN', REQUESTS) - redis.call('HLEN', ASIDE)
end

local function put(id, score, slot)
    redis.call('ZADD', lane(slot), score, id)
    redis.call('ZADD', SLOTS, redis.call('HGET', ACTIVE, slot) or 0, slot)
end

-- Ends the lease of a request, and returns its place. Returns nil if the worker does not hold it.
local function end_lease(token, id)
    local place = redis.call('HGET', held(token), id)
    if not place then
        return nil
    end
    local score, slot = string.match(place, '^(%S+) (.*)$')
    redis.call('HDEL', held(token), id)
    local active = redis.call('HINCRBY', ACTIVE, slot, -1)
    if active < 1 then
        redis.call('HDEL', ACTIVE, slot)
        active = 0
    end
    if redis.call('ZSCORE', SLOTS, slot) then
        redis.call('ZADD', SLOTS, active, slot)
    end
    if redis.call('HINCRBY', holders(slot), token, -1) < 1 then
        redis.call('HDEL', holders(slot), token)
    end
    return score, slot
end

local function set_aside(id, score, slot, reason)
    redis.call('HSET', ASIDE, id, score .. ' ' .. reason .. ' ' .. slot)
end

-- Ends a worker and puts what it held back at its old place. With a crash limit above 0, whatever was in hand is
-- suspected, and set aside at that number of crashes. Returns how many it held, the ids set aside, and its name.
local function end_worker(token, crash_limit)
    local returned, aside = 0, {}
    local name = redis.call('HGET', held(token), 'name')
    for _, id in ipairs(redis.call('HKEYS', held(token))) do
        if tonumber(id) then
            local score, slot = end_lease(token, id)
            returned = returned + 1
            if crash_limit > 0 and redis.call('HINCRBY', CRASHES, id, 1) >= crash_limit then
                set_aside(id, score, slot, 'crashes')
                aside[#aside + 1] = id
            else
                put(id, score, slot)
            end
        end
    end
    redis.call('ZREM', WORKERS, token)
    redis.call('DEL', held(token))
    if name and redis.call('HGET', NAMES, name) == token then
        redis.call('HDEL', NAMES, name)
    end
    return returned, aside, name or ''
end

