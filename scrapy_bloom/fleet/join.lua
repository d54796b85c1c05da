-- Begins the life of a worker in a shard. Follows head.lua.
--
-- ARGV[1] chain   ARGV[2] token   ARGV[3] worker's name   ARGV[4] its place: an earlier worker of this place is dead
-- ARGV[5] ms of a lease   ARGV[6] token of its last life in the same process, or ""
-- ARGV[7] "1" if a worker is to run start()
--
-- Returns {requests that an earlier life held, how many of these were buried}; or an objection; or, if a worker of the
-- same name is alive at another place, the end of its lease
local chain, token, name, place, lease, last, has_start = unpack(ARGV)
local earlier, now = call('HGET', NAMES, name), milliseconds()
local problem = objection(chain, token, -1)
if problem and problem ~= 'back' then return problem end
local returned, buried = 0, 0
if earlier and earlier ~= last then
    local ends = call('ZSCORE', WORKERS, earlier)
    if ends and tonumber(ends) > now and call('HGET', worker(earlier), 'place') ~= place then return tostring(ends) end
    allow_when_full()
    returned, buried = end_worker(earlier, true)
end
allow_when_full()
if last ~= '' then -- it is alive, and so has not died
    end_worker(last, false)
    call('SADD', RETURNED, last)
    for _, packed in ipairs(call('LRANGE', DEAD, -1000, -1)) do
        local reason, slot, score, entry, _, id, lost = unpack(cmsgpack.unpack(packed))
        if reason == 'crashes' and string.find(lost, last, 1, true) and crashes(lost) < CRASH_LIMIT then
            call('LREM', DEAD, -1, packed)
            call('HSET', SUSPECTS, id, cmsgpack.pack({slot, score, lost, entry}))
            call('HINCRBY', STATE, 'outstanding', 1)
        end
    end
end
local start = call('HGET', STATE, 'start')
if last == '' and call('ZCOUNT', WORKERS, now, '+inf') == 0 then -- a run begins, perhaps under other settings
    call('DEL', OWN_DELAYS, SHARES, LIMITS, IN_HAND)
    for _, slot in ipairs(call('SMEMBERS', FULL)) do reopen(slot) end
    if start == 'done' then start = false end
end
if has_start == '1' and not start then call('HSET', STATE, 'start', 'pending') end
call('HSET', CALLS, token, 0)
call('HSET', NAMES, name, token)
call('HSET', worker(token), 'name', name, 'place', place)
call('HSET', STATE, 'called', now)
call('ZADD', WORKERS, now + tonumber(lease), token)
return {returned, buried}
