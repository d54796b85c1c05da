-- The bitmaps of one chain: begins bitmap.lua, and the queue's finish.lua, which look digests up and add them.
-- bitmap.py describes the probe scheme and builds the arguments.
--
-- open_chain(first, at) reads
--   KEYS[first]    the metadata, a hash       KEYS[first + 1..]  the layers, oldest first; and the next if need be
--   ARGV[at]       the chain's id             ARGV[at + 1]       index behind the newest layer the caller knows of
--   ARGV[at + 2]   the next layer's sizes as they are written into the metadata
--   ARGV[at + 3]   index of the oldest layer  ARGV[at + 4]       seconds after which a layer is dropped, 0 for never
--   ARGV[at + 5]   seconds after which a layer takes no more     ARGV[at + 6]   sizes of the layer that follows it then
--   ARGV[at + 7..] m, k, capacity for each key of a layer
-- and returns the chain, or nil and the reply that says why not:
--   {-1}                        the metadata is gone, or is another chain's, or a layer is gone
--   {0, fields and values}      the caller does not know all layers, or some were too old and are gone
local function open_chain(first, at)
    local call = redis.call
    local head = call('HMGET', KEYS[first], 'id', 'layers', 'count', 'oldest', 'created')
    if head[1] ~= ARGV[at] then
        return nil, {-1}
    end
    local oldest = tonumber(ARGV[at + 3])
    local behind = tonumber(ARGV[at + 1])
    if tonumber(head[2]) ~= behind or tonumber(head[4] or 0) ~= oldest then
        return nil, {0, redis.call('HGETALL', KEYS[first])}
    end
    local known = behind - oldest
    local max_age = tonumber(ARGV[at + 4])
    local now = max_age > 0 and tonumber(call('TIME')[1]) or 0

    -- A layer without the field is as old as the chain, for all that is known.
    local function age_of(index)
        return now - tonumber(call('HGET', KEYS[first], 'born:' .. index) or head[5])
    end

    if max_age > 0 then
        local is_changed = false
        -- A beginning more than an eighth of the age in the future means that a clock was wrong.
        local newest_age = age_of(behind - 1)
        local is_closed = newest_age >= tonumber(ARGV[at + 5]) or newest_age < -max_age / 8
        if is_closed and tonumber(head[3]) > 0 then
            local sizes = ARGV[at + 6]
            local key = string.gsub(KEYS[first], 'meta$', ARGV[at] .. ':' .. behind)
            call('SETBIT', key, tonumber(string.match(sizes, '^%d+')) - 1, 0)
            local lifetime = call('PTTL', KEYS[first])
            if lifetime > 0 then
                call('PEXPIRE', key, lifetime)
            end
            call('HSET', KEYS[first], 'layers', behind + 1, 'layer:' .. behind, sizes, 'born:' .. behind, now,
                'count:' .. (behind - 1), head[3], 'count', 0)
            behind = behind + 1
            is_changed = true
        elseif is_closed then
            call('HSET', KEYS[first], 'born:' .. (behind - 1), now) -- nothing was added to it: as good as new
        end
        while oldest < behind - 1 and (age_of(oldest) >= max_age or age_of(oldest) < -max_age / 8) do
            call('UNLINK', KEYS[first + 1 + oldest - tonumber(ARGV[at + 3])])
            call('HDEL', KEYS[first], 'layer:' .. oldest, 'born:' .. oldest, 'count:' .. oldest)
            oldest = oldest + 1
            is_changed = true
        end
        if is_changed then
            call('HSET', KEYS[first], 'oldest', oldest)
            return nil, {0, redis.call('HGETALL', KEYS[first])}
        end
    end
    -- A layer that was deleted or evicted reads as zeros: all of its URLs would be new, and nobody would know why.
    if call('EXISTS', unpack(KEYS, first + 1, first + known)) < known then
        return nil, {-1}
    end
    local with_keys = #KEYS - first
    local sizes, probes, capacities = {}, {}, {}
    for layer = 1, with_keys do
        local number = at + 4 + 3 * layer
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
        local index = oldest + chain.layers - 1
        redis.call('HSET', KEYS[first], 'layers', index + 1, 'layer:' .. index, ARGV[at + 2])
        if max_age > 0 then
            redis.call('HSET', KEYS[first], 'born:' .. index, now)
        end
    end

    function chain.contains(digest)
        local x, y, z = start(digest)
        return contains_up_to(chain.layers, x, y, z)
    end

    -- Returns whether the digest was seen; nil, and adds nothing, if one more layer is needed than there are keys for.
    function chain.add(digest)
        local x, y, z = start(digest)
        local is_full = chain.count >= capacities[chain.layers]
        -- Adding to the newest layer also looks it up, unless it takes no more.
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

    -- Call it once, after the last add.
    function chain.save()
        if chain.count ~= before or chain.layers ~= known then
            redis.call('HSET', KEYS[first], 'count', chain.count)
        end
    end

    return chain
end

