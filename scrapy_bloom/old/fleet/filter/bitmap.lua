-- Looks up digests in the bitmaps of a chain, and adds those that are new; atomic, for many digests at once.
-- Follows probes.lua.
--
-- KEYS      as of open_chain(), from the first on
-- ARGV[1]   "add" or "check"                ARGV[2]   the digests, 16 bytes each, one after the other
-- ARGV[3..] as of open_chain()
--
-- Returns   {-1} or {0, fields and values}  as of open_chain(); nothing was done
--           {1, layers, count, answers}     one character per digest, "1" if it was seen. Fewer answers than digests:
--                                           one more layer is needed than there are keys for, call again for the
--                                           rest. count: digests in the newest layer
local chain, refusal = open_chain(1, 3)
if not chain then
    return refusal
end
local adding, digests = ARGV[1] == 'add', ARGV[2]
local answers = {}
for i = 1, #digests / 16 do
    local digest = string.sub(digests, 16 * i - 15, 16 * i)
    local seen
    if adding then
        seen = chain.add(digest)
        if seen == nil then
            break
        end
    else
        seen = chain.contains(digest)
    end
    answers[i] = seen and '1' or '0'
end
chain.save()
return {1, chain.layers, chain.count, table.concat(answers)}
