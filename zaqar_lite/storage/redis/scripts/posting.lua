-- New messages as the driver packs them: ttl (5 bytes, ms), delay (5 bytes, ms), record from its
-- randomness on.

-- Store them at positions from `first` on, as posted at the instant `at`, where so many messages are `there`.
-- Answers when the first of them is due or expires.
local function store(blobs, first, at, there)
  local soonest, latest, entering = at + 253402300799000, at, new_entries()
  -- What messages of one ttl and delay have in common: the head of the record, and the scores.
  local kinds = {}
  local function kind_of(times)
    local ttl, delay = struct.unpack('>I5I5', times)
    local expires, d = at + ttl, delay > 0 and at + delay or 0
    latest = math.max(latest, expires)
    soonest = math.min(soonest, expires, d > 0 and d or expires)
    kinds[times] = {
      head = struct.pack('>I6I6I5I6', at, expires, ttl, d),
      expires = string.format('%.0f', expires),
      d = d > 0 and string.format('%.0f', d),
    }
    return kinds[times]
  end
  for k, blob in ipairs(blobs) do
    local times = blob:sub(1, 10)
    local kind = kinds[times] or kind_of(times)
    add_entry(entering, struct.pack('>I8', first + k - 1), kind.head .. blob:sub(11), kind.expires, kind.d)
  end
  enter(entering, latest, there == 0)
  return soonest
end

-- A post may store more messages than one call may: other queues wait for the longest call. Up to MOST_AT_ONCE
-- are stored at once. A longer post is decided and given its positions in one call, which puts its messages aside
-- in parts; from then on it is committed, and `publish` stores one part after the other.
local MOST_AT_ONCE, MOST_IN_PART, MOST_BYTES_IN_PART = 250, 100, 262144

-- Put outbox messages into the outbox. Each is: which of the new messages it belongs to, from 0 on (4 bytes), where
-- its id goes in the rest (4 bytes), length of the target's tag (2 bytes), tag, and the rest: as a message that
-- has the random half of the id already. `first` is the position of the first new message.
local function send(outgoing, first)
  if #outgoing == 0 then
    return
  end
  local seq, letters, latest = take_positions(#outgoing), {}, now + 60000
  for i, word in ipairs(outgoing) do
    local number, at, size = struct.unpack('>I4I4H', word)
    local rest = word:sub(11 + size)
    latest = math.max(latest, now + struct.unpack('>I5', rest))
    letters[i] = struct.pack('>I8H', seq + i - 1, size) .. word:sub(11, 10 + size) .. '\255\255'
      .. rest:sub(1, at) .. ('%016x'):format(first + number) .. rest:sub(at + 17)
  end
  apply('RPUSH', outbox, letters)
  keep(latest, {outbox})
  look_after_outbox()
end

-- Remember keys until an instant: fields, and for each its digest and ids.
local function remember(fields, entries, until_when)
  if #fields == 0 then
    return
  end
  local known, head = {}, struct.pack('>I6B', until_when, 1)
  for i, field in ipairs(fields) do
    known[2 * i - 1], known[2 * i] = field, head .. entries[i]
  end
  apply('HSET', keys, known)
  add_to(forgets, fields, string.format('%.0f', until_when))
  keep(until_when, {keys, forgets})
end

-- The same for the keys of new messages, '' for one that has none.
local function remember_messages(words, blobs, first, until_when)
  local fields, entries = {}, {}
  for i, word in ipairs(words) do
    if word ~= '' then
      fields[#fields + 1] = 'm' .. word:sub(17)
      entries[#fields] = word:sub(1, 16) .. struct.pack('>I8', first + i - 1) .. blobs[i]:sub(11, 18)
    end
  end
  remember(fields, entries, until_when)
end

-- The ids that an entry answers, and whether it stands for what has this digest.
local function read_entry(entry, digest)
  if not entry or struct.unpack('>I6', entry) <= now then
    return false, true
  end
  return entry:sub(24), entry:sub(8, 23) == digest
end

-- Look up the keys of messages, '' for one that has none. Answers for each the id that it stands for, or '', and
-- how many are new; or nil and the index of the first that stands for something else.
local function look_up(words)
  local fields, ids_of, new = {}, {}, 0
  for i, word in ipairs(words) do
    fields[i] = 'm' .. word:sub(17)
  end
  for i, entry in ipairs(gather(keys, fields)) do
    ids_of[i] = ''
    if words[i] ~= '' then
      local id, is_same = read_entry(entry, words[i]:sub(1, 16))
      if not is_same then
        return nil, i - 1
      end
      ids_of[i] = id or ''
      new = new + (id and 0 or 1)
    end
  end
  return ids_of, new
end

-- What the driver is told instead of a post's outcome: where there is no room, or where the sweep must know of
-- the queue while outbox messages are on their way; or nil, and how many messages the queue has.
local function refusal(count, new_keys, has_outgoing)
  local there = call('HLEN', messages)
  if there + count > tonumber(ARGV[5]) then
    local gone = expire(250)
    return gone > 0 and {'again', now, gone} or {'full'}
  end
  if new_keys > 0 then
    local old = call('ZRANGEBYSCORE', forgets, '-inf', now, 'LIMIT', 0, 500)
    apply('ZREM', forgets, old)
    apply('HDEL', keys, old)
    if call('ZCARD', forgets) + new_keys > tonumber(ARGV[4]) then
      if #old == 500 then
        return {'again', now, 500}
      end
      local oldest = call('ZRANGE', forgets, 0, 0, 'WITHSCORES')[2]
      return {'many_keys', (oldest or now) - now}
    end
  end
  if has_outgoing and tonumber(life[N.armed] or 0) < now + ARMED / 2 then
    call('HSET', state, 'armed', now + ARMED)
    keep(now + 60000, {})
    return {'arm', now}
  end
  return nil, there
end

-- The ids of a post's messages: `of_known` has those of known keys. Where messages share a key, `places` says which
-- of the given ones stands for each of the post (4 bytes, from 1 on).
local function ids_of_post(of_known, blobs, first, places)
  local given, all, place = {}, {}, 0
  for i = 1, math.max(#of_known, #blobs) do
    if (of_known[i] or '') ~= '' then
      given[i] = of_known[i]
    else
      place = place + 1
      given[i] = struct.pack('>I8', first + place - 1) .. blobs[place]:sub(11, 18)
    end
  end
  for i = 1, #places / 4 do
    all[i] = given[struct.unpack('>I4', places, 4 * i - 3)]
  end
  return table.concat(#all > 0 and all or given)
end

-- Put a post aside in parts. A part is: its kind, how many messages are in the parts before it (4 bytes), then
-- words with their lengths (4 bytes) before them. Kinds: 'm' messages; 'k' each message, then its key or ''; 'c'
-- outbox messages.
local function stage(blobs, words, outgoing, first, until_when)
  local fields, number, latest = {0, struct.pack('>I6I8I6', now, first, until_when)}, 0, now
  local function add(kind, ...)
    local lists, part, size = {...}, {}, 0
    for i = 1, #lists[1] do
      for _, list in ipairs(lists) do
        part[#part + 1] = struct.pack('>I4', #list[i]) .. list[i]
        size = size + #list[i]
      end
      if #part >= MOST_IN_PART * #lists or size > MOST_BYTES_IN_PART or i == #lists[1] then
        number = number + 1
        local before = i - #part / #lists
        fields[#fields + 1] = number
        fields[#fields + 1] = struct.pack('>c1I4', kind, before) .. table.concat(part)
        part, size = {}, 0
      end
    end
  end
  if #words > 0 then
    add('k', blobs, words)
  else
    add('m', blobs)
  end
  add('c', outgoing)
  for _, blob in ipairs(blobs) do
    latest = math.max(latest, now + struct.unpack('>I5', blob))
  end
  apply('HSET', staged, fields)
  call('HSET', state, 'part', 1)
  keep(latest, {staged})
end

-- Store messages in the order of the batch, all or none.
-- ARGV: 1 offset, 2 version, 3 idempotency window (ms), 4 most keys, 5 most messages, 6 the post's own key with
--       its digest ('' for none), 7 number of messages n, 8 of outbox messages m, 9 places of a batch whose keys repeat
--       (ids_of_post), 10 '1' where the message behind these has the key of one of them for something else;
--       11..10+n: messages (store);
--       11+n..10+n+m: outbox messages (send), with the index of their message;
--       11+n+m..10+2n+m, where any has one: the idempotency key of each message, its digest (16 bytes) and its
--       text, '' for none
-- Answers: 'ok', instant to register, first position; then, where keys were given, for each message '' (stored, at
-- the next position) or the id that stands for it already; or 'staged' and the same, where parts are to be
-- published. A known key of the post: 'known', the kind of its entry, and its ids (codec.py). A key that stands
-- for something else: 'reused' and the index of its message, -1 for the post's own. Full: 'full', or 'many_keys'
-- and when the oldest of them ends (ms from now). With outbox messages also 'arm' and now: nothing is done yet, the
-- driver must register the queue and come again.
operation('post', UNLESS_FULL, {whole = true, version = true}, function()
  local own_key, entry = ARGV[6] ~= '' and 'b' .. ARGV[6]:sub(17), nil
  if own_key then
    entry = call('HGET', keys, own_key)
    local known, is_same = read_entry(entry, ARGV[6]:sub(1, 16))
    if not is_same then
      return {'reused', -1}
    elseif known then
      return {'known', entry:byte(7), known}
    end
  end
  local count = tonumber(ARGV[7])
  local keys_at = 10 + count + tonumber(ARGV[8])
  local of_known, new_keys = look_up(arguments(keys_at + 1, #ARGV))
  if not of_known then
    return {'reused', new_keys}
  elseif ARGV[10] == '1' then
    return {'reused', count}
  end
  new_keys = new_keys + (own_key and 1 or 0)

  -- The messages that are new, their keys and outbox messages, and the place of each among them.
  local blobs, words, outgoing, places = {}, {}, {}, {}
  for i = 1, count do
    if (of_known[i] or '') == '' then
      places[i] = #blobs
      blobs[#blobs + 1], words[#blobs + 1] = ARGV[10 + i], ARGV[keys_at + i]
    end
  end
  for i = 11 + count, keys_at do
    local place = places[struct.unpack('>I4', ARGV[i]) + 1]
    if place then
      outgoing[#outgoing + 1] = struct.pack('>I4', place) .. ARGV[i]:sub(5)
    end
  end

  local refused, there = refusal(#blobs, new_keys, #outgoing > 0)
  if refused then
    return refused
  end
  local first, until_when = take_positions(#blobs), now + tonumber(ARGV[3])
  local status, soonest = 'ok', now
  if #blobs + #outgoing <= MOST_AT_ONCE then
    soonest = store(blobs, first, now, there)
    remember_messages(words, blobs, first, until_when)
    send(outgoing, first)
  else
    stage(blobs, words, outgoing, first, until_when)
    status = 'staged'
  end
  if own_key then
    remember({own_key}, {ARGV[6]:sub(1, 16) .. ids_of_post(of_known, blobs, first, ARGV[9])}, until_when)
  end
  local answer = {status, schedule(new_keys > 0 and math.min(soonest, until_when) or soonest),
    struct.pack('>I8', first)}
  for i, id in ipairs(of_known) do
    answer[3 + i] = id
  end
  return answer
end)

-- Store the next part of a post that was put aside (stage).
-- ARGV: 1 offset
-- Answers: 'more', or 'ok' when nothing is left to store.
operation('publish', ALWAYS, {}, function()
  local head, part = unpack(call('HMGET', staged, 0, life[N.part] or ''))
  local following = tonumber(life[N.part] or 0) + 1
  if part then
    local at, first, until_when = struct.unpack('>I6I8I6', head)
    local kind, before = struct.unpack('>c1I4', part)
    local lists, place = {{}, {}}, 6
    while place <= #part do
      for n = 1, kind == 'k' and 2 or 1 do
        lists[n][#lists[n] + 1], place = struct.unpack('>I4c0', part, place)
      end
    end
    if kind == 'c' then
      send(lists[1], first)
    else
      store(lists[1], first + before, at, call('HLEN', messages))
      remember_messages(lists[2], lists[1], first + before, until_when)
    end
    call('HDEL', staged, life[N.part])
  end
  if call('HEXISTS', staged, following) == 1 then
    call('HSET', state, 'part', following)
    return {'more'}
  end
  call('UNLINK', staged)
  call('HDEL', state, 'part')
  return {'ok'}
end)

-- Look up idempotency keys.
-- ARGV: 1 offset, 2.. fields of `keys`
-- Answers: 'ok', whether the queue remembers any key (1 or 0), and for each field its entry, or ''
-- if it is not remembered.
operation('known', ALWAYS, {whole = true}, function()
  local last = call('ZRANGE', forgets, -1, -1, 'WITHSCORES')[2]
  local answer = {'ok', last and tonumber(last) > now and 1 or 0}
  for i, entry in ipairs(gather(keys, arguments(2, #ARGV))) do
    answer[2 + i] = entry and struct.unpack('>I6', entry) > now and entry or ''
  end
  return answer
end)
