-- Begins the life of a worker in a shard. Follows head.lua.
--
-- ARGV[1] token   ARGV[2] worker's name   ARGV[3] ms of a lease
--
-- Returns {outstanding, requests held by an earlier life of this name, of these buried}; nil if the queue is gone
local token, name, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
if call('HEXISTS', STATE, 'format') == 0 then return false end
allow_when_full()
local earlier, returned, buried = call('HGET', NAMES, name), 0, 0
if earlier and earlier ~= token then returned, buried = end_worker(earlier, true) end
local now = milliseconds()
for _, slot in ipairs(call('SMEMBERS', FULL)) do reopen(slot) end -- limits may have changed
call('HSET', NAMES, name, token)
call('HSET', worker(token), 'name', name)
call('HSET', STATE, 'called', now)
call('ZADD', WORKERS, now + lease, token)
return {tonumber(call('HGET', STATE, 'outstanding') or 0), returned, buried}
