-- Puts listed requests back into the queue, each as the next of its lane. Follows head.lua.
--
-- ARGV[1] chain   ARGV[2] ""   ARGV[3] "dead" or "failed"
-- ARGV[4] requests in msgpack, flat: as listed, slot, score, entry
--
-- Returns how many were listed still, or an objection
local problem = objection(ARGV[1], ARGV[2], 0)
if problem then return problem end
local listed, requeued = cmsgpack.unpack(ARGV[4]), 0
for i = 1, #listed, 4 do
    local value, slot, score, entry = unpack(listed, i, i + 3)
    if call('LREM', STATE .. ':' .. ARGV[3], 1, value) == 1 then
        put(slot, score, 'RPUSH', {entry})
        requeued = requeued + 1
    end
end
if requeued > 0 then
    call('HINCRBY', STATE, 'outstanding', requeued)
    call('HINCRBY', STATE, 'seq', requeued)
end
return requeued
