-- Ends the life of a worker that closes. Follows head.lua.
--
-- ARGV[1] chain   ARGV[2] token   ARGV[3] number of the last call of the worker that was answered
--
-- Returns {}, or an objection
local problem = objection(ARGV[1], ARGV[2], tonumber(ARGV[3]))
if problem then return problem end
allow_when_full()
end_worker(ARGV[2], false)
return {}
