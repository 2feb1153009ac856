-- Store messages in the order of the batch, all or none.
-- refused when full
-- ARGV: 1 offset, 2 version, 3 idempotency window (ms), 4 most keys, 5 most messages,
--       6 batch key with its digest ('' for none), 7 number of messages n, 8 of companions m;
--       9..8+n: ttl (5 bytes, ms), delay (5 bytes, ms), record from its randomness on;
--       9+n..8+n+m: number of a message (2 bytes), where its id goes in the rest (4 bytes), length
--       of the target's tag (2 bytes), tag, and the rest: as a message;
--       9+n+m..8+2n+m, where any has one: the idempotency key of each message, likewise
-- A key comes as its digest (16 bytes) and its text.
-- Answers: 'ok', instant to register, first position; then, where keys were given, for each
-- message '' (stored, at the next position) or the id that stands for it already.
-- A known batch key: 'known' and its ids (16 bytes each). A key that stands for something else:
-- 'reused' and the index of its message, -1 for the batch key. Full: 'full' (see make_room), or
-- 'many_keys' and when the oldest of them ends (ms from now). With companions also 'arm' and now:
-- nothing is done yet, the driver must register the queue and come again.
-- key outbox: list, letters and companions on their way; drained by outbox_ack, expires by `keep`
-- key keys: hash, 'b' or 'm' and idempotency key -> entry (codec.py); expires by `keep`
-- key forgets: zset, the same fields by deadline; expires by `keep`
-- key due: zset, positions by d (ms); expires by `keep`
-- key waiting: zset, score 0, the same positions, for listing; expires by `keep`
-- include: version ready
local window, count = tonumber(ARGV[3]), tonumber(ARGV[7])
local batch_key = ARGV[6] ~= '' and 'b' .. ARGV[6]:sub(17)
local companions = tonumber(ARGV[8])
local keys_at = 8 + count + companions
local keyed = #ARGV > keys_at

-- The ids that an entry answers, and whether it stands for what has this digest. Entries of earlier
-- versions have no digest, and match any.
local function read_entry(entry, digest)
  if not entry or struct.unpack('>I6', entry) <= now then
    return false, true
  elseif #entry % 16 == 6 then
    return entry:sub(7), true
  end
  return entry:sub(24), entry:sub(8, 23) == digest
end

if batch_key then
  local known, is_same = read_entry(redis.call('HGET', keys, batch_key), ARGV[6]:sub(1, 16))
  if not is_same then
    return {'reused', -1}
  elseif known then
    return {'known', 0, known}
  end
end

-- Which messages are new, and which of them stands for each.
local new, answers, first_of, digests, new_keys = {}, {}, {}, {}, batch_key and 1 or 0
local fields = {}
for i = 1, keyed and count or 0 do
  fields[i] = 'm' .. ARGV[keys_at + i]:sub(17)
end
local entries = gather(keys, fields)
for i = 1, count do
  local field, id, is_same = fields[i], false, true
  local digest = field and ARGV[keys_at + i]:sub(1, 16) or ''
  if digest ~= '' and first_of[field] then
    id, is_same = first_of[field], digests[field] == digest
  elseif digest ~= '' then
    id, is_same = read_entry(entries[i], digest)
  end
  if not is_same then
    return {'reused', i - 1}
  end
  answers[i] = id or ''
  if not id then
    new[#new + 1] = i
    if digest ~= '' then
      first_of[field], digests[field] = #new, digest
      new_keys = new_keys + 1
    end
  end
end

local there = redis.call('HLEN', messages)
if there + #new > tonumber(ARGV[5]) then
  return {'full'}
end
if new_keys > 0 then
  local old = redis.call('ZRANGEBYSCORE', forgets, '-inf', now, 'LIMIT', 0, 500)
  if #old > 0 then
    apply('ZREM', forgets, old)
    apply('HDEL', keys, old)
  end
  if redis.call('ZCARD', forgets) + new_keys > tonumber(ARGV[4]) then
    if #old == 500 then
      return {'again', now, 500}
    end
    local oldest = redis.call('ZRANGE', forgets, 0, 0, 'WITHSCORES')[2]
    return {'many_keys', (oldest or now) - now}
  end
end

-- The sweep must know of the queue while something is on its way, so that a crash loses nothing.
if companions > 0 and tonumber(redis.call('HGET', state, 'armed') or 0) < now + 30000 then
  redis.call('HSET', state, 'armed', now + 60000)
  keep(now + 60000, {})
  return {'arm', now}
end

local first = take_positions(#new)
local soonest, latest = has_orphans(there) and now or now + 253402300799000, now
local first_due

-- What messages of one ttl and delay have in common: the head of the record, and the scores.
local kinds = {}
local function kind_of(times)
  local ttl, delay = struct.unpack('>I5I5', times)
  local expires, d = now + ttl, delay > 0 and now + delay or 0
  latest = math.max(latest, expires)
  soonest = math.min(soonest, expires, d > 0 and d or expires)
  first_due = d > 0 and math.min(first_due or d, d) or first_due
  kinds[times] = {
    head = struct.pack('>I6I6I5I6', now, expires, ttl, d),
    expires = string.format('%.0f', expires),
    d = d > 0 and string.format('%.0f', d),
  }
  return kinds[times]
end

local stored, records, expiring = {}, {}, {}
local ready_now, priorities, delayed, delays = {}, {}, {}, {}
for k, i in ipairs(new) do
  local blob = ARGV[8 + i]
  local times = blob:sub(1, 10)
  local kind = kinds[times] or kind_of(times)
  local position, record = struct.pack('>I8', first + k - 1), kind.head .. blob:sub(11)
  stored[k], expiring[k] = position, kind.expires
  records[2 * k - 1], records[2 * k] = position, record
  if not kind.d then
    ready_now[#ready_now + 1] = position
    priorities[#priorities + 1] = priority_of(record)
  else
    delayed[#delayed + 1] = position
    delays[#delays + 1] = kind.d
    if not life[4] and priority_of(record) ~= DEFAULT_PRIORITY then
      redis.call('HSET', state, 'ranked', 1)
      life[4] = '1'
    end
  end
end
apply('HSET', messages, records)
add_to(expiry, stored, expiring)
keep(latest, there == 0 and {messages, expiry} or {})
if #ready_now > 0 then
  enter_ready(ready_now, priorities)
end
if #delayed > 0 then
  add_to(due, delayed, delays)
  add_to(waiting, delayed)
  keep(latest, {due, waiting})
  hasten(first_due)
end

local id_of, number_of = {}, {}
for k, i in ipairs(new) do
  id_of[k] = stored[k] .. ARGV[8 + i]:sub(11, 18)
  number_of[i] = k
end
local on_their_way = {}
for i = 1, companions do
  local word = ARGV[8 + count + i]
  local number, at, size = struct.unpack('>HI4H', word)
  local id = id_of[number_of[number]]
  if id then
    local digits = id:gsub('.', function(byte) return ('%02x'):format(byte:byte()) end)
    local rest = word:sub(9 + size)
    on_their_way[#on_their_way + 1] = struct.pack('>H', size) .. word:sub(9, 8 + size) .. '\255\255'
      .. rest:sub(1, at) .. digits .. rest:sub(at + 33)
  end
end
if #on_their_way > 0 then
  local seq = take_positions(#on_their_way)
  for i, word in ipairs(on_their_way) do
    on_their_way[i] = struct.pack('>I8', seq + i - 1) .. word
  end
  apply('RPUSH', outbox, on_their_way)
  keep(latest + 60000, {outbox})
end
if new_keys > 0 then
  local known, until_when = {}, now + window
  local head, forgetting = struct.pack('>I6B', until_when, 1), {}
  local function remember(field, digest, all)
    known[#known + 1], known[#known + 2] = field, head .. digest .. all
    forgetting[#forgetting + 1] = field
  end
  for field, k in pairs(first_of) do
    remember(field, digests[field], id_of[k])
  end
  if batch_key then
    local all = {}
    for i, id in ipairs(answers) do
      all[i] = id
    end
    for k, i in ipairs(new) do
      all[i] = id_of[k]
    end
    for i, id in ipairs(all) do
      all[i] = type(id) == 'number' and id_of[id] or id
    end
    remember(batch_key, ARGV[6]:sub(1, 16), table.concat(all))
  end
  apply('HSET', keys, known)
  add_to(forgets, forgetting, string.format('%.0f', until_when))
  soonest = math.min(soonest, until_when)
  keep(until_when, {keys, forgets})
end
local answer = {'ok', schedule(soonest), struct.pack('>I8', first)}
if keyed then
  for i = 1, count do
    local known_id = answers[i]
    answer[3 + i] = type(known_id) == 'number' and id_of[known_id] or known_id
  end
end
return answer
