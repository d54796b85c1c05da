-- Ends a worker that stops cleanly: what it holds is pending again, and suspected of nothing. Follows queue.lua.
-- ARGV[1] token. Returns how many it held.
allow_when_full()
return (end_worker(ARGV[1], 0))
