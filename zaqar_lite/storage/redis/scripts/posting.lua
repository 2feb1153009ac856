-- New messages as the driver packs them: ttl (5 bytes, ms), delay (5 bytes, ms), record from its
-- randomness on.

-- Store them at positions from `first` on, as posted at the instant `at`, where so many messages are `there`.
-- Answers their positions, and when the first of them is due or expires.
local function store(blobs, first, at, there)
  local soonest, latest, first_due = at + 253402300799000, at, nil
  -- What messages of one ttl and delay have in common: the head of the record, and the scores.
  local kinds = {}
  local function kind_of(times)
    local ttl, delay = struct.unpack('>I5I5', times)
    local expires, d = at + ttl, delay > 0 and at + delay or 0
    latest = math.max(latest, expires)
    soonest = math.min(soonest, expires, d > 0 and d or expires)
    first_due = d > 0 and math.min(first_due or d, d) or first_due
    kinds[times] = {
      head = struct.pack('>I6I6I5I6', at, expires, ttl, d),
      expires = string.format('%.0f', expires),
      d = d > 0 and string.format('%.0f', d),
    }
    return kinds[times]
  end
  local stored, records, deadlines = {}, {}, {}
  local ready_now, priorities, is_plain, delayed, delays = {}, {}, true, {}, {}
  local grouped, members = {}, {}
  for k, blob in ipairs(blobs) do
    local times = blob:sub(1, 10)
    local kind = kinds[times] or kind_of(times)
    local position, record = struct.pack('>I8', first + k - 1), kind.head .. blob:sub(11)
    stored[k] = position
    deadlines[2 * k - 1], deadlines[2 * k] = kind.expires, position
    records[2 * k - 1], records[2 * k] = position, record
    if blob:byte(19) >= 4 then -- its flags: it has a group
      grouped[#grouped + 1], members[#members + 1] = position, record
    end
    if not kind.d then
      local at, priority = #ready_now + 1, priority_of(record)
      ready_now[at], priorities[at] = position, priority
      is_plain = is_plain and priority == DEFAULT_PRIORITY
    else
      delayed[#delayed + 1] = position
      delays[#delays + 1] = kind.d
      if not life.ranked and priority_of(record) ~= DEFAULT_PRIORITY then
        redis.call('HSET', state, 'ranked', 1)
        life.ranked = '1'
      end
    end
  end
  apply('HSET', messages, records)
  apply('ZADD', expiry, deadlines)
  keep(latest, there == 0 and {messages, expiry} or {})
  if #grouped > 0 then
    join_groups(grouped, members)
  end
  if #ready_now > 0 then
    enter_ready(ready_now, not is_plain and priorities or nil)
  end
  if #delayed > 0 then
    add_to(due, delayed, delays)
    add_to(waiting, delayed)
    keep(latest, {due, waiting})
    hasten(first_due)
  end
  return stored, soonest
end

-- What posts leave beside messages, whether they are one script or come in parts.
-- A key comes as its digest (16 bytes) and its text.

-- Put companions into the outbox: number of the message (4 bytes), where its id goes in the rest (4
-- bytes), length of the target's tag (2 bytes), tag, and the rest: as a message that has the random
-- half of the id already. `position_of` tells where the message is, or nil where it was not stored.
local function send(companions, position_of)
  local letters, latest = {}, now + 60000
  for _, word in ipairs(companions) do
    local number, at, size = struct.unpack('>I4I4H', word)
    local position = position_of(number)
    if position then
      local rest = word:sub(11 + size)
      latest = math.max(latest, now + struct.unpack('>I5', rest))
      letters[#letters + 1] = struct.pack('>H', size) .. word:sub(11, 10 + size) .. '\255\255'
        .. rest:sub(1, at) .. ('%016x'):format(position) .. rest:sub(at + 17)
    end
  end
  if #letters > 0 then
    local seq = take_positions(#letters)
    for i, letter in ipairs(letters) do
      letters[i] = struct.pack('>I8', seq + i - 1) .. letter
    end
    apply('RPUSH', outbox, letters)
    keep(latest, {outbox})
    look_after_outbox()
  end
end

-- Remember keys until an instant: fields, and for each its digest and ids, in that of the two kinds.
local function remember(fields, entries, until_when, kind)
  local known, head = {}, struct.pack('>I6B', until_when, kind)
  for i, field in ipairs(fields) do
    known[2 * i - 1], known[2 * i] = field, head .. entries[i]
  end
  apply('HSET', keys, known)
  add_to(forgets, fields, string.format('%.0f', until_when))
  keep(until_when, {keys, forgets})
end

-- Whether a post may be stored, and what is known of it.
-- ARGV: 2 version, 3 idempotency window (ms), 4 most keys, 5 most messages, 6 batch key with its
--       digest ('' for none)
local batch_key -- field of the post's own key, or false

-- The ids that an entry answers, and whether it stands for what has this digest.
local function read_entry(entry, digest)
  if not entry or struct.unpack('>I6', entry) <= now then
    return false, true
  end
  return entry:sub(24), entry:sub(8, 23) == digest
end

-- For so long (ms) the note of a post in parts holds up others.
local CHECKING = 5000

-- Whether a post in parts that has another ticket decides by the keys of this queue (recall.lua).
local function is_checked_by_another(ticket)
  local note = redis.call('HGET', state, 'checking')
  if not note or note:sub(7) == ticket then
    return false
  end
  local left = struct.unpack('>I6', note) - now
  return left > 0 and left <= CHECKING -- more are left where a failover has set the clock back
end

-- The ids of all messages of a batch, of those of the sent ones; `places` says which of these stands
-- for each message (4 bytes each), '' where all were sent.
local function ids_of_batch(sent_ids, places)
  if places == '' then
    return table.concat(sent_ids)
  end
  local all = {}
  for i = 1, #places / 4 do
    all[i] = sent_ids[struct.unpack('>I4', places, 4 * i - 3)]
  end
  return table.concat(all)
end

-- What a post is told by its own key: a reply, or nil where that key is new or there is none.
local function decided_by_batch_key()
  batch_key = ARGV[6] ~= '' and 'b' .. ARGV[6]:sub(17)
  local entry = batch_key and redis.call('HGET', keys, batch_key)
  local known, is_same = read_entry(entry, ARGV[6]:sub(1, 16))
  if not is_same then
    return {'reused', -1}
  elseif known then
    return {'known', entry:byte(7), known}
  end
end

-- What the driver is told instead of the post's outcome: where there is no room, where the sweep must
-- know of the queue while companions are on their way; or nil, and how many messages the queue has.
local function refusal(count, new_keys, has_companions)
  local there = redis.call('HLEN', messages)
  if there + count > tonumber(ARGV[5]) then
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
  if has_companions and tonumber(redis.call('HGET', state, 'armed') or 0) < now + ARMED / 2 then
    redis.call('HSET', state, 'armed', now + ARMED)
    keep(now + 60000, {})
    return {'arm', now}
  end
  return nil, there
end

-- Store messages in the order of the batch, all or none.
-- ARGV: 1 offset, 2 to 6: deciding, 7 number of messages n, 8 of companions m, 9 places of a batch
--       whose keys repeat (deciding);
--       10..9+n: messages (storing);
--       10+n..9+n+m: companions (posting); their number is that of their message;
--       10+n+m..9+2n+m, where any has one: the idempotency key of each message, '' for none
-- Answers: 'ok', instant to register, first position; then, where keys were given, for each
-- message '' (stored, at the next position) or the id that stands for it already.
-- A known batch key: 'known', the kind of its entry, and its ids (codec.py). A key that stands for something else:
-- 'reused' and the index of its message, -1 for the batch key. Full: 'full' (see make_room), or
-- 'many_keys' and when the oldest of them ends (ms from now). With companions also 'arm' and now:
-- nothing is done yet, the driver must register the queue and come again. 'wait': another post
-- decides by these keys; come again in a moment.
operation('post', UNLESS_FULL, {whole = true, version = true}, function()
  local decided = decided_by_batch_key()
  if decided then
    return decided
  end
  local count, companions = tonumber(ARGV[7]), tonumber(ARGV[8])
  local keys_at = 9 + count + companions
  local keyed = #ARGV > keys_at
  if keyed and is_checked_by_another('') then
    return {'wait'}
  end

  local fields, entries = {}, {}
  if keyed then
    for i = 1, count do
      fields[i] = 'm' .. ARGV[keys_at + i]:sub(17)
    end
    entries = gather(keys, fields)
  end
  local answers, blobs, number_of, new_keys = {}, {}, {}, batch_key and 1 or 0
  for i = 1, count do
    local digest, id, is_same = keyed and ARGV[keys_at + i]:sub(1, 16) or '', false, true
    if digest ~= '' then
      id, is_same = read_entry(entries[i], digest)
    end
    if not is_same then
      return {'reused', i - 1}
    end
    answers[i] = id or ''
    if not id then
      blobs[#blobs + 1] = ARGV[9 + i]
      number_of[i] = #blobs
      new_keys = new_keys + (digest ~= '' and 1 or 0)
    end
  end
  local refused, there = refusal(#blobs, new_keys, companions > 0)
  if refused then
    return refused
  end

  local first = take_positions(#blobs)
  local stored, soonest = store(blobs, first, now, there)
  if companions > 0 then
    local words = {}
    for i = 1, companions do
      words[i] = ARGV[9 + count + i]
    end
    send(words, function(i)
      return number_of[i] and first + number_of[i] - 1
    end)
  end
  if new_keys > 0 then
    local sent_ids, new_fields, known = {}, {}, {}
    for i = 1, count do
      local k = number_of[i]
      sent_ids[i] = k and stored[k] .. blobs[k]:sub(11, 18) or answers[i]
      if k and keyed and ARGV[keys_at + i] ~= '' then
        new_fields[#new_fields + 1] = fields[i]
        known[#new_fields] = ARGV[keys_at + i]:sub(1, 16) .. sent_ids[i]
      end
    end
    if batch_key then
      new_fields[#new_fields + 1] = batch_key
      known[#new_fields] = ARGV[6]:sub(1, 16) .. ids_of_batch(sent_ids, ARGV[9])
    end
    local until_when = now + tonumber(ARGV[3])
    remember(new_fields, known, until_when, 1)
    soonest = math.min(soonest, until_when)
  end
  local answer = {'ok', schedule(soonest), struct.pack('>I8', first)}
  if keyed then
    for i = 1, count do
      answer[3 + i] = answers[i]
    end
  end
  return answer
end)

-- Commit a post that has too many messages for one script. They are staged here, and publish.lua
-- stores them a part at a time. Until the last part is stored, no script reads or stores messages of
-- this queue (whole.lua), so that all of them become visible at once.
-- ARGV: 1 offset, 2 to 6: deciding, 7 number of new messages, 8 number of new keys (not the batch's),
--       9 places (deciding), 10 the longest ttl (ms), 11 '1' where it has companions, 12 ticket of
--       recall or '', 13 where it has a batch key: '1' and the ids of all that were sent (16 bytes
--       each), of new ones as if the first of them had position 0; or, where all are new, '2' and the
--       second halves of their ids; 14.. parts (publish)
-- Answers: as post; or 'late' if the note of the ticket has ended, and recall must be called again.
operation('stage', UNLESS_FULL, {whole = true, version = true}, function()
  local decided = decided_by_batch_key()
  if decided then
    return decided
  end
  local count, ticket = tonumber(ARGV[7]), ARGV[12]
  if ticket ~= '' then
    local note = redis.call('HGET', state, 'checking')
    if not note or note:sub(7) ~= ticket or struct.unpack('>I6', note) <= now then
      return {'late'}
    end
  end
  local refused = refusal(count, tonumber(ARGV[8]) + (batch_key and 1 or 0), ARGV[11] == '1')
  if refused then
    if refused[1] == 'full' or refused[1] == 'many_keys' then
      redis.call('HDEL', state, 'checking')
    end
    return refused
  end
  local first, until_when = take_positions(count), now + tonumber(ARGV[3])
  local fields = {0, struct.pack('>I6I8I6', now, first, until_when)}
  for i = 14, #ARGV do
    fields[#fields + 1] = i - 13
    fields[#fields + 1] = ARGV[i]
  end
  apply('HSET', staged, fields)
  redis.call('HSET', state, 'part', 1)
  redis.call('HDEL', state, 'checking')
  keep(now + tonumber(ARGV[10]), {staged})
  if batch_key then
    local kind, sent_ids = tonumber(ARGV[13]:sub(1, 1)), {}
    for at = 2, kind == 1 and #ARGV[13] or 0, 16 do
      local position = struct.unpack('>I8', ARGV[13], at)
      if position < count then
        position = first + position
      end
      sent_ids[#sent_ids + 1] = struct.pack('>I8', position) .. ARGV[13]:sub(at + 8, at + 15)
    end
    local answer = kind == 1 and ids_of_batch(sent_ids, ARGV[9]) or struct.pack('>I8', first) .. ARGV[13]:sub(2)
    remember({batch_key}, {ARGV[6]:sub(1, 16) .. answer}, until_when, kind)
  end
  return {'ok', schedule(now), struct.pack('>I8', first)}
end)

-- Tell which messages of a post in parts are known by their keys, before it is committed.
-- ARGV: 1 offset, 2 and 6: deciding, 7 ticket (8 bytes; '' where the post will be refused in any
--       case), 8.. keys, '' for none
-- Answers: 'ok' and for each key '' (new), the id that stands for it, or '!' where it stands for
-- something else; or as post: 'known', 'reused' (of the batch key), 'wait'.
-- The ticket is noted. Until that note ends, other posts with keys of this queue have to wait. A
-- refusal ends it.
operation('recall', ALWAYS, {whole = true, version = true}, function()
  local decided = decided_by_batch_key()
  if decided then
    return decided
  end
  if is_checked_by_another(ARGV[7]) then
    return {'wait'}
  end
  local words = arguments_from(8)
  local fields, answer, is_refused = {}, {'ok'}, ARGV[7] == ''
  for i, word in ipairs(words) do
    fields[i] = 'm' .. word:sub(17)
  end
  for i, entry in ipairs(gather(keys, fields)) do
    local digest = words[i]:sub(1, 16)
    local id, is_same = false, true
    if digest ~= '' then
      id, is_same = read_entry(entry, digest)
    end
    answer[1 + i] = is_same and (id or '') or '!'
    is_refused = is_refused or not is_same
  end
  if is_refused then
    redis.call('HDEL', state, 'checking')
  else
    redis.call('HSET', state, 'checking', struct.pack('>I6', now + CHECKING) .. ARGV[7])
    keep(now, {})
  end
  return answer
end)

-- Store the next part of a post that was committed in parts (stage.lua).
-- ARGV: 1 offset
-- A part: its kind, how many messages are in the parts before it (4 bytes), then words with their
-- lengths (4 bytes) before them. Kinds: 'm' messages; 'k' each message, then its key or ''; 'c' companions,
-- whose number is that of their message among the new ones.
-- Answers: 'more', or 'ok' when nothing is left to store.
operation('publish', ALWAYS, {}, function()
  local head, part = unpack(redis.call('HMGET', staged, 0, life.part or ''))
  if not part then
    redis.call('UNLINK', staged)
    redis.call('HDEL', state, 'part')
    return {'ok'}
  end
  local at, first, until_when = struct.unpack('>I6I8I6', head)
  local kind, before = struct.unpack('>c1I4', part)
  local words, place = {}, 6
  while place <= #part do
    words[#words + 1], place = struct.unpack('>I4c0', part, place)
  end
  if kind == 'c' then
    send(words, function(number) return first + number end)
  else
    local blobs, fields, entries = words, {}, {}
    if kind == 'k' then
      blobs = {}
      for i = 1, #words, 2 do
        blobs[#blobs + 1] = words[i]
      end
    end
    local stored = store(blobs, first + before, at, redis.call('HLEN', messages))
    for i = 2, kind == 'k' and #words or 0, 2 do
      if words[i] ~= '' then
        fields[#fields + 1] = 'm' .. words[i]:sub(17)
        entries[#fields] = words[i]:sub(1, 16) .. stored[i / 2] .. words[i - 1]:sub(11, 18)
      end
    end
    if #fields > 0 then
      remember(fields, entries, until_when, 1)
    end
  end
  redis.call('HDEL', staged, life.part)
  local following = tonumber(life.part) + 1
  if redis.call('HEXISTS', staged, following) == 1 then
    redis.call('HSET', state, 'part', following)
    return {'more'}
  end
  redis.call('UNLINK', staged)
  redis.call('HDEL', state, 'part')
  return {'ok'}
end)

-- Look up idempotency keys.
-- ARGV: 1 offset, 2.. fields of `keys`
-- Answers: 'ok', whether the queue remembers any key (1 or 0), and for each field its entry, or ''
-- if it is not remembered.
operation('known', ALWAYS, {whole = true}, function()
  local last = redis.call('ZRANGE', forgets, -1, -1, 'WITHSCORES')[2]
  local answer = {'ok', last and tonumber(last) > now and 1 or 0}
  for i, entry in ipairs(gather(keys, arguments_from(2))) do
    answer[2 + i] = entry and struct.unpack('>I6', entry) > now and entry or ''
  end
  return answer
end)

-- Remove what has expired from a full queue.
-- ARGV: 1 offset
-- Answers: 'ok' and how many.
operation('make_room', ALWAYS, {whole = true}, function()
  return {'ok', expire(250)}
end)
