-- Begins every script of the queue. KEYS[1] is the state of a shard, "{prefix:shard}"; the names of its other keys
-- begin with it, and so share its hash tag:
--
--   {..}            hash: format, key_space, seed, chain, layers, count, capacity, error_rate, shards; outstanding:
--                   requests that are not done, to detect lost keys; seq: requests ever taken in; ids: last id handed
--                   out; called, ahead: ms of the last join or take, and how far the clock of the queue is ahead of the
--                   server's, which went back; start: who runs start(): "pending", a token, or "done"; starts: how
--                   often it was done; pauses: number of the last pause; left: requests of full slots when seq and
--                   outstanding were as left-at says
--   ..:bits:<chain>:<layer>:<n>   n-th megabyte of a layer's blocks
--   ..:lane:<score>:<slot>        list: entries of one slot and priority, the next one last
--   ..:lanes:<slot>               sorted set: the scores of a slot's lanes, the most urgent first
--   ..:slots        sorted set: slots by the time in ms from which they may be served: those with requests, and those
--                   that were emptied before their delay was over
--   ..:paused       hash: slot -> time in ms before which it gets no request, since its host has asked for that
--   ..:pauses       sorted set: the same slots by the number of the pause
--   ..:delays       hash: slot -> ms between two requests, as settings, robots.txt or AutoThrottle say
--   ..:shares, ..:limits  hashes: slot -> what the settings say of it: the most in hand of all workers, the most pages
--                   (-1: no limit)
--   ..:in-hand      hash: slot with a share -> how many are in hand
--   ..:pages        hash: slot -> how many it has had, if there are limits     ..:full  set: slots that get no more
--   ..:workers      sorted set: token by end of its lease      ..:names    hash: name -> token of its newest life
--   ..:held:<token> hash: id -> {slot, score, crashes, entry}     ..:worker:<token>  hash: name, last, suspect
--                   *crashes* is how many workers died with the request in hand, or were silent for a lease
--   ..:suspects     hash: the same, of requests that were in hand when a worker died, and are pending
--   ..:dead         list: {reason, slot, score, entry, time in s}
--   ..:failed       list: the same, of requests that have failed for good
--   ..:items:<name> list: items of pages, to be collected, after a line that identifies the entry
--   ..:forgotten  set: what may be seen once more
--   ..:estimates    hash: process -> what it knows for the estimate of pages left, in the first shard
--   ..:calls        hash: token -> number of its last finish
--   ..:refused      hash: token -> number of its last finish that refused pages, and their places in it
--
-- A full server refuses a script at its first write if that may need memory; nothing has been changed then. It carries
-- a script out that begins by deleting something. So scripts that renew leases or acknowledge pages begin with a DEL.
local STATE, call = KEYS[1], redis.call
local SLOTS, WORKERS, NAMES, CALLS = STATE .. ':slots', STATE .. ':workers', STATE .. ':names', STATE .. ':calls'
local SUSPECTS, DEAD, PAGES, FULL = STATE .. ':suspects', STATE .. ':dead', STATE .. ':pages', STATE .. ':full'
local REFUSED, FAILED, NOTHING = STATE .. ':refused', STATE .. ':failed', STATE .. ':nothing'
local PAUSED, PAUSES, DELAYS = STATE .. ':paused', STATE .. ':pauses', STATE .. ':delays'
local SHARES, LIMITS, IN_HAND = STATE .. ':shares', STATE .. ':limits', STATE .. ':in-hand'

local function lane(slot, score) return STATE .. ':lane:' .. score .. ':' .. slot end
local function lanes(slot) return STATE .. ':lanes:' .. slot end
local function held(token) return STATE .. ':held:' .. token end
local function worker(token) return STATE .. ':worker:' .. token end
local function allow_when_full() call('DEL', NOTHING) end

-- Returns the time in ms by the clock of the queue, which stands still while the server's clock goes back.
local function milliseconds()
    local time, called, ahead = call('TIME'), unpack(call('HMGET', STATE, 'called', 'ahead'))
    local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ahead or 0)
    local behind = tonumber(called or 0) - now
    if behind <= 0 then return now end
    call('HINCRBY', STATE, 'ahead', behind)
    return now + behind
end

-- Returns why a worker's call does not count: the queue is "gone"; "other", it was begun anew; the server has gone
-- "back" to a time before the worker's call *number*, or before its life. Nil if there is no objection.
local function objection(chain, token, number)
    -- One key that is there and one that is not: while a cluster moves the keys, neither of the two nodes may look at
    -- both, so the script ends here. Otherwise it would take a key that was moved for a lost one.
    call('EXISTS', STATE, NOTHING)
    local here = call('HGET', STATE, 'chain')
    if not here then return 'gone' end
    if here ~= chain then return 'other' end
    if token == '' then return end -- a command, which has no life
    local last = call('HGET', CALLS, token)
    if not last or tonumber(last) < number then return 'back' end
end

-- Gives a slot its turn, unless it has one: once its pause is over.
local function give_turn(slot) call('ZADD', SLOTS, 'NX', call('HGET', PAUSED, slot) or 0, slot) end

-- Puts entries into a lane, at the end that *push* names: RPUSH makes the last one the next.
local function put(slot, score, push, entries)
    local length
    for i = 1, #entries, 1000 do -- what unpack() can take
        length = call(push, lane(slot, score), unpack(entries, i, math.min(i + 999, #entries)))
    end
    if length == #entries then -- it was empty
        call('ZADD', lanes(slot), score, score)
        if call('SISMEMBER', FULL, slot) == 0 then give_turn(slot) end
    end
end

-- Lets a slot be served again; if it still is full, the next look at it finds that.
local function reopen(slot)
    if call('SREM', FULL, slot) == 1 then give_turn(slot) end
end

-- Takes back a page of a slot, which was counted and did not come.
local function uncount(slot)
    if call('HEXISTS', PAGES, slot) == 1 then call('HINCRBY', PAGES, slot, -1) end
    reopen(slot)
end

local exists = {}
-- Returns what a hash says of a slot, or nil. Most hashes are not there, which costs one look for all slots.
local function said(hash, slot)
    if exists[hash] == nil then exists[hash] = call('EXISTS', hash) == 1 end
    return exists[hash] and tonumber(call('HGET', hash, slot) or nil) or nil
end

-- Counts a request of a slot that has a share as in hand, or as no longer in hand; *by* is 1 or -1.
local function count_in_hand(slot, by)
    if said(SHARES, slot) and call('HINCRBY', IN_HAND, slot, by) <= 0 then call('HDEL', IN_HAND, slot) end
end

local MOST_FAILED = 100000 -- of a shard that are listed

-- Puts a request on the list of dead letters or failures. It is not pending any more, and not outstanding.
local function list(name, reason, slot, score, entry)
    if name == DEAD or call('LLEN', name) < MOST_FAILED then
        call('RPUSH', name, cmsgpack.pack({reason, slot, score, entry, call('TIME')[1]}))
    end
end

local CRASH_LIMIT = 3 -- a request that was in hand when a worker died, this many times, is dead-lettered

-- Ends the life of a worker. What it held is pending again, in its old order; after a crash it is suspected of having
-- killed the worker, and dead-lettered after several. Returns how many it held, and how many were dead-lettered.
local function end_worker(token, is_crash)
    local all, ids, buried = call('HGETALL', held(token)), {}, 0
    for i = 1, #all, 2 do ids[#ids + 1] = {tonumber(all[i]), all[i + 1]} end
    table.sort(ids, function(a, b) return a[1] > b[1] end)
    for _, pair in ipairs(ids) do
        local slot, score, crashes, entry = unpack(cmsgpack.unpack(pair[2]))
        count_in_hand(slot, -1)
        if is_crash then crashes = crashes + 1 end
        if crashes >= CRASH_LIMIT then
            list(DEAD, 'crashes', slot, score, entry)
            buried = buried + 1
        elseif crashes > 0 then -- and still counts as a page
            call('HSET', SUSPECTS, pair[1], cmsgpack.pack({slot, score, crashes, entry}))
        else
            uncount(slot)
            put(slot, score, 'RPUSH', {entry})
        end
    end
    local name = call('HGET', worker(token), 'name') or ''
    if call('HGET', NAMES, name) == token then call('HDEL', NAMES, name) end
    if call('HGET', STATE, 'start') == token then call('HSET', STATE, 'start', 'pending') end
    call('ZREM', WORKERS, token)
    call('DEL', held(token), worker(token))
    if buried > 0 then call('HINCRBY', STATE, 'outstanding', -buried) end
    return #ids, buried
end
