-- Acknowledges pages, and takes in what came from them: looks links up in the filter, adds those that are new and
-- enqueues them. All or nothing. Follows queue.lua and the probes of the filter's engine.
--
-- KEYS[1]  the state                          KEYS[2..] as of open_chain()
-- ARGV[1]  token                              ARGV[2]   number of this call among the worker's
-- ARGV[3]  number of ids to acknowledge, then these; number of links, then for each: its digest, or "" for one that is
--          not filtered; perhaps behind it, to be looked up only, the digest under which scrapy-redis would have known
--          it; the part of its score that the order in time is added to; "+" first-in-first-out or "-" last;
--          slot; entry. Then as of open_chain()
--
-- Returns  {-2}                               there is no queue; nothing was done
--          {-1} or {0, fields and values}     as of open_chain(); nothing was done
--          {1, layers, count, answers, acknowledged, is alive, outstanding, seq}
--              answers: one character per link, "1" if it was seen. Fewer than links: one more layer is needed than
--              there are keys for; the rest and the ids have to be sent again.
local token, number, acknowledgements = ARGV[1], ARGV[2], tonumber(ARGV[3])
local links, first = tonumber(ARGV[4 + acknowledgements]), 5 + acknowledgements
if redis.call('HEXISTS', STATE, 'format') == 0 then
    return {-2}
end
local chain, refusal = open_chain(2, first + 5 * links)
if not chain then
    return refusal
end
local is_alive = redis.call('ZSCORE', WORKERS, token)
-- The worker repeats a call whose answer got lost.
local is_repeated = is_alive and redis.call('HGET', held(token), 'number') == number

-- Whether the filter taken over from scrapy-redis has it.
local function seen_before(digests)
    return #digests > 16 and chain.contains(string.sub(digests, 17))
end

local answers, has_new = {}, false
for i = 0, links - 1 do
    local digests = ARGV[first + 5 * i]
    if not has_new and not is_repeated then
        has_new = digests == '' or not (chain.contains(string.sub(digests, 1, 16)) or seen_before(digests))
    end
    answers[i + 1] = '1'
end
if is_repeated then
    answers = {string.rep('0', links)}
elseif has_new then
    answers = {}
    -- The first write, so that a full server refuses before anything has been changed.
    local seq = redis.call('HINCRBY', STATE, 'seq', links) - links
    for i = 0, links - 1 do
        local at = first + 5 * i
        local seen = false
        if ARGV[at] ~= '' then
            seen = seen_before(ARGV[at]) or chain.add(string.sub(ARGV[at], 1, 16))
            if seen == nil then
                break
            end
        end
        if not seen then
            local id = seq + i + 1
            redis.call('HSET', REQUESTS, id, ARGV[at + 4])
            put(id, tonumber(ARGV[at + 1]) + (ARGV[at + 2] == '+' and id or -id), ARGV[at + 3])
        end
        answers[i + 1] = seen and '1' or '0'
    end
    chain.save()
    if is_alive and #answers == links then
        redis.call('HSET', held(token), 'number', number)
    end
end
answers = table.concat(answers)

local acknowledged = 0
if #answers == links then
    for i = 4, 3 + acknowledgements do
        if end_lease(token, ARGV[i]) then
            redis.call('HDEL', REQUESTS, ARGV[i])
            redis.call('HDEL', CRASHES, ARGV[i])
            acknowledged = acknowledged + 1
        end
    end
end
local seq = redis.call('HGET', STATE, 'seq') or '0'
return {1, chain.layers, chain.count, answers, acknowledged, is_alive and 1 or 0, outstanding(), seq}
