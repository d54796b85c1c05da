-- The bitmaps of one chain: begins bitmap.lua, and the queue's finish.lua, which look digests up and add them.
-- bitmap.py describes the probe scheme and builds the arguments.
--
-- open_chain(first, at) reads
--   KEYS[first]    the metadata, a hash       KEYS[first + 1..]  the layers, oldest first; and the next if need be
--   ARGV[at]       the chain's id             ARGV[at + 1]       number of layers that the caller knows of
--   ARGV[at + 2]   the next layer's sizes as they are written into the metadata
--   ARGV[at + 3..] m, k, capacity for each key of a layer
-- and returns the chain, or nil and the reply that says why not:
--   {-1}                        the metadata is gone, or is another chain's, or a layer is gone
--   {0, fields and values}      the caller does not know all layers
local function open_chain(first, at)
    local call = redis.call
    local head = call('HMGET', KEYS[first], 'id', 'layers', 'count')
    if head[1] ~= ARGV[at] then
        return nil, {-1}
    end
    local known = tonumber(ARGV[at + 1])
    if tonumber(head[2]) ~= known then
        return nil, {0, redis.call('HGETALL', KEYS[first])}
    end
    -- A layer that was deleted or evicted reads as zeros: all of its URLs would be new, and nobody would know why.
    if call('EXISTS', unpack(KEYS, first + 1, first + known)) < known then
        return nil, {-1}
    end
    local with_keys = #KEYS - first
    local sizes, probes, capacities = {}, {}, {}
    for layer = 1, with_keys do
        local number = at + 3 * layer
        sizes[layer] = tonumber(ARGV[number])
        probes[layer] = tonumber(ARGV[number + 1])
        capacities[layer] = tonumber(ARGV[number + 2])
    end
    local chain = {layers = known, count = tonumber(head[3])}
    local before = chain.count

    -- Three 42-bit numbers of one digest. With moduli below 2^33 every sum stays exact in Lua's doubles.
    local function start(digest)
        local a, b, c, d = struct.unpack('<I4I4I4I4', digest)
        return a * 1024 + d % 1024, b * 1024 + math.floor(d / 1024) % 1024, c * 1024 + math.floor(d / 1048576) % 1024
    end

    local function contains(layer, x, y, z)
        local key, size = KEYS[first + layer], sizes[layer]
        x, y, z = x % size, y % size, z % size
        for _ = 1, probes[layer] do
            if call('GETBIT', key, x) == 0 then
                return false
            end
            x, y, z = (x + y) % size, (y + z) % size, (z + 1) % size
        end
        return true
    end

    local function contains_up_to(layer, x, y, z)
        while layer > 0 do
            if contains(layer, x, y, z) then
                return true
            end
            layer = layer - 1
        end
        return false
    end

    -- Sets all bits of a digest, and returns whether all of them were set before. A loop of SETBIT takes two thirds of
    -- the time of one BITFIELD, whose four arguments per bit and table of answers cost more than a call. The 1 is a string
    -- because Redis prints numbers with "%.17g", which is slow.
    local function set(layer, x, y, z)
        local key, size, was_seen = KEYS[first + layer], sizes[layer], true
        x, y, z = x % size, y % size, z % size
        for _ = 1, probes[layer] do
            if call('SETBIT', key, x, '1') == 0 then
                was_seen = false
            end
            x, y, z = (x + y) % size, (y + z) % size, (z + 1) % size
        end
        return was_seen
    end

    local function grow()
        chain.layers = chain.layers + 1
        chain.count = 0
        redis.call('SETBIT', KEYS[first + chain.layers], sizes[chain.layers] - 1, 0)
        local lifetime = redis.call('PTTL', KEYS[first])
        if lifetime > 0 then
            redis.call('PEXPIRE', KEYS[first + chain.layers], lifetime)
        end
        redis.call('HSET', KEYS[first], 'layers', chain.layers, 'layer:' .. (chain.layers - 1), ARGV[at + 2])
    end

    function chain.contains(digest)
        local x, y, z = start(digest)
        return contains_up_to(chain.layers, x, y, z)
    end

    -- Returns whether the digest was seen; nil, and adds nothing, if one more layer is needed than there are keys for.
    function chain.add(digest)
        local x, y, z = start(digest)
        local is_full = chain.count >= capacities[chain.layers]
        -- The newest layer is looked up while it is being written, unless nothing more is written into it.
        if contains_up_to(is_full and chain.layers or chain.layers - 1, x, y, z) then
            return true
        end
        if is_full then
            if chain.layers == with_keys then
                return nil
            end
            grow()
        end
        if set(chain.layers, x, y, z) then
            return true
        end
        chain.count = chain.count + 1
        return false
    end

    -- To be called once, after the last add.
    function chain.save()
        if chain.count ~= before or chain.layers ~= known then
            redis.call('HSET', KEYS[first], 'count', chain.count)
        end
    end

    return chain
end

