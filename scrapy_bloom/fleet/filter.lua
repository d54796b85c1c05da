-- The blocked bloom filter of a shard; blocks.py says how it is laid out and why. Follows head.lua, or stands alone.
local FILTER, SEGMENT, BLOCK = KEYS[1], 7168, 144 -- blocks of a segment, bytes of a block
local BLOCK_FORMAT, PROBE_FORMAT = '<' .. string.rep('i', 36), '<' .. string.rep('B', 9) .. string.rep('i', 9)
local bor, band, byte, floor, read = bit.bor, bit.band, string.byte, math.floor, struct.unpack

-- Opens the chain. *sizes* has for each layer that may come its blocks and capacity, *max_age* is in ms, or 0.
--
-- A layer is {number, rank, blocks, capacity, begun, closed}, and the newest one is the last. The rank of a layer says
-- which share of the error rate it has. If there is a maximum age, a layer takes no more keys after half of it, and is
-- deleted as a whole when its last key is older than it. A new layer takes the lowest free rank, so the error rates of
-- all layers together stay below the rate of the chain.
local function open_chain(sizes, max_age, now)
    local id, packed, count = unpack(redis.call('HMGET', FILTER, 'chain', 'layers', 'count'))
    local layers = packed and cmsgpack.unpack(packed) or {}
    local forgets = redis.call('EXISTS', FILTER .. ':forgotten') == 1
    local chain, keys, has_added, has_changed = {}, {}, false, false
    count = tonumber(count or 0)

    local function segment(layer, n)
        return FILTER .. ':bits:' .. id .. ':' .. layer[1] .. ':' .. n
    end

    -- Returns where a key's block is in a layer: the segment, and the place of the block's first byte.
    local function find(layer, place)
        local number = place % layer[3]
        local n = floor(number / SEGMENT)
        local known = keys[layer] or {} -- names are costly to make: with numbers in them
        keys[layer] = known
        known[n] = known[n] or segment(layer, n)
        return known[n], (number - n * SEGMENT) * BLOCK
    end

    -- Returns the latest time at which a layer can have got its last key: it takes none after half the maximum age.
    local function last_key(layer)
        local latest = layer[5] + max_age / 2
        return layer[6] > 0 and math.min(layer[6], latest) or latest
    end

    local function drop_old()
        while #layers > 0 and last_key(layers[1]) + max_age < now do
            local old = table.remove(layers, 1)
            for n = 0, floor(old[3] / SEGMENT) do redis.call('UNLINK', segment(old, n)) end
            has_changed = true
        end
    end

    local function begin_layer()
        local newest, rank, taken = layers[#layers], 1, {}
        for _, layer in ipairs(layers) do taken[layer[2]] = true end
        while taken[rank] do rank = rank + 1 end
        if newest then newest[6] = now end
        local number = newest and newest[1] + 1 or 1
        layers[#layers + 1] = {number, rank, sizes[2 * rank - 1], sizes[2 * rank], now, 0}
        count, has_changed = 0, true
    end

    local function contains(layer, place, probe)
        local key, at = find(layer, place)
        local block = redis.call('GETRANGE', key, at, at + BLOCK - 1)
        if #block < BLOCK then return false end
        for i = 1, 9 do
            local mask = read('<i', probe, 4 * i + 6)
            if band(read('<i', block, 4 * byte(probe, i) - 3), mask) ~= mask then return false end
        end
        return true
    end

    -- Sets the bits in the newest layer; returns whether one of them was not set before.
    local function insert(layer, place, probe)
        local key, at = find(layer, place)
        local block = redis.call('GETRANGE', key, at, at + BLOCK - 1)
        if #block < BLOCK then block = block .. string.rep('\0', BLOCK - #block) end
        local words, bits, is_new = {read(BLOCK_FORMAT, block)}, {read(PROBE_FORMAT, probe)}, false
        for i = 1, 9 do
            local w = bits[i]
            local before = words[w]
            local after = bor(before, bits[i + 9])
            if after ~= before then words[w], is_new = after, true end
        end
        if is_new then redis.call('SETRANGE', key, at, struct.pack(BLOCK_FORMAT, unpack(words, 1, 36))) end
        return is_new
    end

    -- Adds a key, by its place and its bits: nine numbers of words, one byte each, and nine masks. Returns whether it
    -- was new.
    function chain.add(place, probe)
        local newest, is_known = layers[#layers], false
        local is_full = not newest or count >= newest[4] or (max_age > 0 and newest[5] + max_age / 2 < now)
        for i = #layers - (is_full and 0 or 1), 1, -1 do
            is_known = is_known or contains(layers[i], place, probe)
        end
        if not is_known then
            if is_full then begin_layer() end
            if insert(layers[#layers], place, probe) then
                count, has_added = count + 1, true
                if forgets then redis.call('SREM', FILTER .. ':forgotten', probe) end
                return true
            end
        end
        return forgets and redis.call('SREM', FILTER .. ':forgotten', probe) == 1
    end

    function chain.save()
        if has_added then redis.call('HSET', FILTER, 'count', count) end
        if has_changed then redis.call('HSET', FILTER, 'layers', cmsgpack.pack(layers)) end
    end

    if max_age > 0 then drop_old() end
    return chain
end
