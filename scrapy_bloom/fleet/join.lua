-- Begins the queue of a shard if there is none, and the life of a worker in it. Follows head.lua.
--
-- ARGV[1] token   ARGV[2] worker's name   ARGV[3] ms of a lease   ARGV[4] crash limit   ARGV[5] "rejoin": begin nothing
-- ARGV[6..] fields and values of a new queue's state
--
-- Returns {state as fields and values, is new, outstanding, held by an earlier life of this name, buried}; the state is
-- empty if the queue is gone.
local token, name, lease, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
allow_when_full()
local is_new = 0
if call('HEXISTS', STATE, 'format') == 0 then
    if ARGV[5] == 'rejoin' then return {{}, 0, 0, 0, 0} end
    call('HSET', STATE, unpack(ARGV, 6))
    is_new = 1
end
local earlier, returned, buried = call('HGET', NAMES, name), 0, 0
if earlier and earlier ~= token then returned, buried = end_worker(earlier, limit) end
local now = milliseconds()
call('HSET', NAMES, name, token)
call('HSET', worker(token), 'name', name)
call('HSET', STATE, 'called', now)
call('ZADD', WORKERS, now + lease, token)
return {call('HGETALL', STATE), is_new, outstanding(), returned, buried}
