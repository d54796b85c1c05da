-- Begins the queue of a shard if there is none, and a worker in it. Follows queue.lua.
--
-- ARGV[1] worker's name    ARGV[2] its new token    ARGV[3] milliseconds of a lease    ARGV[4] crash limit
-- ARGV[5] "polite": leave the name to another worker that is alive under it
-- ARGV[6..] fields and values of the state: "format" and "spider" first, then those of a new queue only
--
-- Returns {0, fields and values}: another format or spider; nothing was done
--         {-1}: the name is taken
--         {1, created, outstanding, requests that an earlier worker of this name held, ids set aside, fields and values}
allow_when_full()
local created = 0
if redis.call('EXISTS', STATE) == 0 then
    redis.call('HSET', STATE, unpack(ARGV, 6))
    created = 1
end
local state = redis.call('HMGET', STATE, ARGV[6], ARGV[8])
if state[1] ~= ARGV[7] or state[2] ~= ARGV[9] then
    return {0, redis.call('HGETALL', STATE)}
end
local name, token = ARGV[1], ARGV[2]
local now = milliseconds()
local earlier = redis.call('HGET', NAMES, name)
local returned, aside = 0, {}
if earlier and earlier ~= token then
    if ARGV[5] == 'polite' and tonumber(redis.call('ZSCORE', WORKERS, earlier) or 0) > now then
        return {-1}
    end
    returned, aside = end_worker(earlier, tonumber(ARGV[4]))
end
redis.call('HSET', NAMES, name, token)
redis.call('HSET', held(token), 'name', name, 'lease', ARGV[3])
redis.call('ZADD', WORKERS, now + ARGV[3], token)
return {1, created, outstanding(), returned, aside, redis.call('HGETALL', STATE)}
