-- Ends the life of a worker that closes, or buries a request that it holds. Follows head.lua.
--
-- ARGV[1] token   ARGV[2] if given, the id to bury, and ARGV[3] a word for the reason
allow_when_full()
if not ARGV[2] then return (end_worker(ARGV[1], 0)) end
local place = call('HGET', held(ARGV[1]), ARGV[2])
if not place then return 0 end
local score, slot = string.match(place, '^(%S+) (.*)$')
call('HDEL', held(ARGV[1]), ARGV[2])
bury(ARGV[2], ARGV[3], score, slot)
release(slot, 1, ARGV[1])
return 1
