-- Looks up digests in the bitmaps of a chain, and adds those that are new; atomic, for many digests at once.
-- bitmap.py describes the probe scheme and builds the arguments.
--
-- KEYS[1]   the metadata, a hash            KEYS[2..] the layers, oldest first; a key for the next one if need be
-- ARGV[1]   the chain's id                  ARGV[2]   number of layers that the caller knows of
-- ARGV[3]   "add" or "check"                ARGV[4]   the digests, 16 bytes each, one after the other
-- ARGV[5]   the next layer's design as it is written into the metadata
-- ARGV[6..] m, k, capacity for each key of a layer
--
-- Returns   {-1}                            the metadata is gone, or is another chain's
--           {0, fields and values}          the caller does not know all layers; nothing was done
--           {1, layers, count, answers}     one character per digest, "1" if it was seen. Fewer answers than digests:
--                                           one more layer is needed than there are keys for, call again for the
--                                           rest. count: keys in the newest layer
local known, adding, digests = tonumber(ARGV[2]), ARGV[3] == 'add', ARGV[4]
local head = redis.call('HMGET', KEYS[1], 'id', 'layers', 'count')
if head[1] ~= ARGV[1] then
    return {-1}
end
if tonumber(head[2]) ~= known then
    return {0, redis.call('HGETALL', KEYS[1])}
end

local count, layers = tonumber(head[3]), known
local sizes, probes, capacities = {}, {}, {}
for layer = 1, #KEYS - 1 do
    local at = 6 + 3 * (layer - 1)
    sizes[layer], probes[layer], capacities[layer] = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
end

-- Three 42-bit numbers of one digest. With moduli below 2^33 every sum stays exact in Lua's doubles.
local function start(digest)
    local a, b, c, d = struct.unpack('<I4I4I4I4', digest)
    return a * 1024 + d % 1024, b * 1024 + math.floor(d / 1024) % 1024, c * 1024 + math.floor(d / 1048576) % 1024
end

local function contains(layer, x, y, z)
    local key, size = KEYS[layer + 1], sizes[layer]
    x, y, z = x % size, y % size, z % size
    for _ = 1, probes[layer] do
        if redis.call('GETBIT', key, x) == 0 then
            return false
        end
        x, y, z = (x + y) % size, (y + z) % size, (z + 1) % size
    end
    return true
end

-- Sets all bits of a key in one call, which returns what they were before.
local function set(layer, x, y, z)
    local size = sizes[layer]
    local command = {'BITFIELD', KEYS[layer + 1]}
    x, y, z = x % size, y % size, z % size
    for i = 1, probes[layer] do
        local at = 4 * i - 1
        command[at], command[at + 1], command[at + 2], command[at + 3] = 'SET', 'u1', x, 1
        x, y, z = (x + y) % size, (y + z) % size, (z + 1) % size
    end
    local was_seen = true
    for _, bit in ipairs(redis.call(unpack(command))) do
        was_seen = was_seen and bit == 1
    end
    return was_seen
end

local function grow()
    layers = layers + 1
    count = 0
    redis.call('SETBIT', KEYS[layers + 1], sizes[layers] - 1, 0)
    local lifetime = redis.call('PTTL', KEYS[1])
    if lifetime > 0 then
        redis.call('PEXPIRE', KEYS[layers + 1], lifetime)
    end
    redis.call('HSET', KEYS[1], 'layers', layers, 'layer:' .. (layers - 1), ARGV[5])
end

local answers, before = {}, count
for i = 1, #digests / 16 do
    local x, y, z = start(string.sub(digests, 16 * i - 15, 16 * i))
    -- The newest layer is looked up while it is being written, unless nothing more is written into it.
    local is_full = count >= capacities[layers]
    local seen, layer = false, (adding and not is_full) and layers - 1 or layers
    while not seen and layer > 0 do
        seen = contains(layer, x, y, z)
        layer = layer - 1
    end
    if adding and not seen then
        if is_full then
            if layers == #KEYS - 1 then
                break
            end
            grow()
        end
        seen = set(layers, x, y, z)
        if not seen then
            count = count + 1
        end
    end
    answers[i] = seen and '1' or '0'
end
if count ~= before or layers ~= known then
    redis.call('HSET', KEYS[1], 'count', count)
end
return {1, layers, count, table.concat(answers)}
