-- Removes a chain, but not the metadata of the one that another process has meanwhile begun in its place.
--
-- KEYS[1]   the metadata                    KEYS[2..] what else belongs to the chain
-- ARGV[1]   the chain's id
redis.call('UNLINK', unpack(KEYS, 2))
if redis.call('HGET', KEYS[1], 'id') == ARGV[1] then
    redis.call('UNLINK', KEYS[1])
end
return 1
