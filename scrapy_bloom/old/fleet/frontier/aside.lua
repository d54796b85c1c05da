-- Sets a leased request aside, or puts requests that were set aside back. Follows queue.lua.
--
-- ARGV[1] "set", ARGV[2] token, ARGV[3] id, ARGV[4] reason, a word      Returns 1 if the worker held it
-- ARGV[1] "back", ARGV[2..] ids; none: all                             Returns how many are pending again
allow_when_full()
if ARGV[1] == 'set' then
    local score, slot = end_lease(ARGV[2], ARGV[3])
    if not score then
        return 0
    end
    set_aside(ARGV[3], score, slot, ARGV[4])
    return 1
end
local ids = {unpack(ARGV, 2)}
if #ids == 0 then
    ids = redis.call('HKEYS', ASIDE)
end
local back = 0
for _, id in ipairs(ids) do
    local place = redis.call('HGET', ASIDE, id)
    if place then
        local score, slot = string.match(place, '^(%S+) %S+ (.*)$')
        redis.call('HDEL', ASIDE, id)
        redis.call('HDEL', CRASHES, id)
        put(id, score, slot)
        back = back + 1
    end
end
return back
