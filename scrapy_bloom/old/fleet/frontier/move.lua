-- Enqueues requests of another queue, each once however often it is called, and adds them to the filter: they were
-- pending there, so it does not matter whether the filter knows them. Follows queue.lua and the probes of the engine.
--
-- KEYS[1]  the state       KEYS[2..] as of open_chain()
-- ARGV[1]  number of the take-over    ARGV[2] number of requests, then for each: its mark, by which it is known again;
--          digest, part of its score, order, slot and entry as in finish.lua. Then as of open_chain()
--
-- Returns  {-1} or {0, fields and values}   as of open_chain(); nothing was done
--          {1, layers, count, moved}        requests got through. Fewer than given: call again for the rest
local taken_key, requests = base .. 'taken:' .. ARGV[1], tonumber(ARGV[2])
local chain, refusal = open_chain(2, 3 + 6 * requests)
if not chain then
    return refusal
end
local moved = 0
for at = 3, 2 + 6 * requests, 6 do
    local mark, digest = ARGV[at], ARGV[at + 1]
    if redis.call('SADD', taken_key, mark) == 1 then
        if digest ~= '' and chain.add(digest) == nil then
            redis.call('SREM', taken_key, mark)
            break
        end
        local id = redis.call('HINCRBY', STATE, 'seq', 1)
        redis.call('HSET', REQUESTS, id, ARGV[at + 5])
        put(id, tonumber(ARGV[at + 2]) + (ARGV[at + 3] == '+' and id or -id), ARGV[at + 4])
    end
    moved = moved + 1
end
chain.save()
return {1, chain.layers, chain.count, moved}
