-- The server's own filter in the place of probes.lua: the same functions, for scripts that look up, add and do more.
--
-- open_chain(first, at) reads KEYS[first], the metadata; KEYS[first + 1], the filter; ARGV[at], the chain's id.
local function open_chain(first, at)
    if redis.call('HGET', KEYS[first], 'id') ~= ARGV[at] or redis.call('EXISTS', KEYS[first + 1]) == 0 then
        return nil, {-1}
    end
    local chain = {layers = 0, count = 0}

    function chain.contains(digest)
        return redis.call('BF.EXISTS', KEYS[first + 1], digest) == 1
    end

    function chain.add(digest)
        local reply = redis.pcall('BF.INSERT', KEYS[first + 1], 'NOCREATE', 'ITEMS', digest)
        -- An error, as of a filter that may not grow any more: whatever was not added is new, for all it knows.
        return not reply.err and reply[1] == 0
    end

    function chain.save()
    end

    return chain
end

