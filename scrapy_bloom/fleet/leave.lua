-- Ends the life of a worker that closes. Follows head.lua.
--
-- ARGV[1] token
allow_when_full()
end_worker(ARGV[1], false)
