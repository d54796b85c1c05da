-- Makes pending again what a worker holds without knowing it, as after a lease whose answer got lost. Follows
-- queue.lua.
--
-- ARGV[1] token   ARGV[2..] the ids that the worker knows of. Returns how many it did not.
allow_when_full()
local known = {}
for i = 2, #ARGV do
    known[ARGV[i]] = true
end
local returned = 0
for _, id in ipairs(redis.call('HKEYS', held(ARGV[1]))) do
    if tonumber(id) and not known[id] then
        put(id, end_lease(ARGV[1], id))
        returned = returned + 1
    end
end
return returned
