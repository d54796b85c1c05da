-- Moves start URLs from where others push them into the queue, as entries that a worker has yet to make requests of.
-- Follows queue.lua.
--
-- KEYS[2] a list, taken from its head; or a set; or a sorted set, taken from its highest score, as scrapy-redis does
-- ARGV[1] most to take   ARGV[2] what such an entry begins with   ARGV[3] their slot
--
-- Returns how many were taken, or -1: the key holds something else
--
-- Nothing is taken as long as requests are pending here, so that what has been pushed can be seen, and taken back.
local SOURCE = KEYS[2]
local kind = redis.call('TYPE', SOURCE).ok
if kind == 'none' or redis.call('EXISTS', SLOTS) == 1 or redis.call('HEXISTS', STATE, 'format') == 0 then
    return 0
end
local count = ({list = 'LLEN', set = 'SCARD', zset = 'ZCARD'})[kind]
if not count then
    return -1
end
local taken = math.min(tonumber(ARGV[1]), redis.call(count, SOURCE))
-- The first write, so that a full server refuses before anything has been changed.
local seq = redis.call('HINCRBY', STATE, 'seq', taken) - taken
for i = 1, taken do
    local pushed
    if kind == 'list' then
        pushed = redis.call('LPOP', SOURCE)
    elseif kind == 'set' then
        pushed = redis.call('SPOP', SOURCE)
    else
        pushed = redis.call('ZPOPMAX', SOURCE)[1]
    end
    redis.call('HSET', REQUESTS, seq + i, ARGV[2] .. pushed)
    put(seq + i, seq + i, ARGV[3])
end
return taken
