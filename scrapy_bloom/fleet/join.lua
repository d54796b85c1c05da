-- Begins the life of a worker in a shard. Follows head.lua.
--
-- ARGV[1] chain   ARGV[2] token   ARGV[3] worker's name, whose earlier life is over   ARGV[4] ms of a lease
-- ARGV[5] token of its last life in the same process, or ""   ARGV[6] "1" if workers can run start()
--
-- Returns {requests that an earlier life held, how many of these were buried}, or an objection
local chain, token, name, lease, last, has_start = unpack(ARGV)
local earlier, now = call('HGET', NAMES, name), milliseconds()
local problem = objection(chain, token, -1)
if problem and problem ~= 'back' then return problem end
local returned, buried = 0, 0
allow_when_full()
if earlier then returned, buried = end_worker(earlier, earlier ~= last) end
local start = call('HGET', STATE, 'start')
if last == '' and call('ZCOUNT', WORKERS, now, '+inf') == 0 then -- a run begins, perhaps under other settings
    call('DEL', DELAYS, SHARES, LIMITS, IN_HAND)
    for _, slot in ipairs(call('SMEMBERS', FULL)) do reopen(slot) end
    if start == 'done' then start = false end
end
if has_start == '1' and not start then call('HSET', STATE, 'start', 'pending') end
call('HSET', CALLS, token, 0)
call('HSET', NAMES, name, token)
call('HSET', worker(token), 'name', name)
call('HSET', STATE, 'called', now)
call('ZADD', WORKERS, now + tonumber(lease), token)
return {returned, buried}
