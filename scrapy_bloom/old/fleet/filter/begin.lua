-- Returns the metadata of a chain as a flat list of fields and values, after creating the chain if there is none.
-- Atomic, so that of several processes that start together one creates and the others find.
--
-- KEYS[1]   the metadata, a hash            KEYS[2]   the first key of the chain if it is created now
-- ARGV[1]   "bf" or "bitmap"                ARGV[2]   milliseconds to live, 0 for ever
-- ARGV[3]   bf: error rate; bitmap: m       ARGV[4]   bf: capacity         ARGV[5]   bf: expansion
-- ARGV[6..] fields and values of the metadata
if redis.call('EXISTS', KEYS[1]) == 0 then
    if ARGV[1] == 'bf' then
        redis.call('BF.RESERVE', KEYS[2], ARGV[3], ARGV[4], 'EXPANSION', ARGV[5])
    else
        -- Writing the last bit allocates the whole bitmap at once instead of growing it a hundred times.
        redis.call('SETBIT', KEYS[2], tonumber(ARGV[3]) - 1, 0)
    end
    redis.call('HSET', KEYS[1], unpack(ARGV, 6))
    if tonumber(ARGV[2]) > 0 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        redis.call('PEXPIRE', KEYS[2], ARGV[2])
    end
end
return redis.call('HGETALL', KEYS[1])
