-- New messages as the driver packs them: ttl (5 bytes, ms), delay (5 bytes, ms), record from its
-- randomness on.

-- Store them at positions from `first` on, as posted at the instant `at`.
local function store(blobs, first, at)
  local entering = new_entries()
  -- What messages of one ttl and delay have in common: the head of the record, and the scores.
  local kinds = {}
  local function kind_of(times)
    local ttl, delay = struct.unpack('>I5I5', times)
    local expires, d = at + ttl, delay > 0 and at + delay or 0
    visit(expires)
    kinds[times] = {
      head = struct.pack('>I6I6I5I6', at, expires, ttl, d),
      expires = score_of(expires),
      d = d > 0 and score_of(d),
    }
    return kinds[times]
  end
  for k, blob in ipairs(blobs) do
    local times = blob:sub(1, 10)
    local kind = kinds[times] or kind_of(times)
    add_entry(entering, struct.pack('>I8', first + k - 1), kind.expires, kind.d, split_body(kind.head, blob, 11))
  end
  enter(entering)
end

-- Put outbox messages into the outbox. Each is: which of the new messages it belongs to, from 0 on (4 bytes), where
-- its id goes in the rest (4 bytes), length of the target's tag (2 bytes), tag, and the rest: as a message that
-- has the random half of the id already. `first` is the position of the first new message.
local function send(outgoing, first)
  if #outgoing == 0 then
    return
  end
  local seq, letters = take_positions(#outgoing), {}
  for i, word in ipairs(outgoing) do
    local number, at, size = struct.unpack('>I4I4H', word)
    local rest = word:sub(11 + size)
    keep(now + struct.unpack('>I5', rest))
    letters[i] = struct.pack('>I8H', seq + i - 1, size) .. word:sub(11, 10 + size) .. '\255\255'
      .. rest:sub(1, at) .. ('%016x'):format(first + number) .. rest:sub(at + 17)
  end
  put('RPUSH', outbox, letters)
  look_after_outbox()
end

-- Remember keys until an instant: fields, and for each its entry behind that (codec.py).
local function remember(fields, entries, until_when)
  local known, head = {}, struct.pack('>I6', until_when)
  for i, field in ipairs(fields) do
    known[2 * i - 1], known[2 * i] = field, head .. entries[i]
  end
  put('HSET', keys, known)
  add_to(forgets, fields, score_of(until_when))
  visit(until_when)
end

-- The same for the keys of new messages, from the position `first` on: the random half of the message's id (8 bytes),
-- the digest of what the key stands for (16 bytes) and the key's text; '' for a message that has none. `keyed` tells
-- who has looked up keys before (post) that there are others now.
local function remember_messages(words, first, until_when)
  local fields, entries, count = {}, {}, 0
  for i, word in ipairs(words) do
    if word ~= '' then
      count = count + 1
      fields[count] = 'm' .. word:sub(25)
      entries[count] = '\1' .. word:sub(9, 24) .. struct.pack('>I8', first + i - 1) .. word:sub(1, 8)
    end
  end
  if count > 0 then
    call('HSET', state, 'keyed', score_of(first))
    remember(fields, entries, until_when)
  end
end

-- The same for the key of a whole post: the digest of what it stands for (16 bytes), the length of its text (2 bytes),
-- the text, and the ids that it answers (codec.py).
local OWN_KEY = '>c16Hc0'
local function remember_post(word, first, until_when)
  local digest, text, at = struct.unpack(OWN_KEY, word)
  remember({'b' .. text}, {'\2' .. digest .. struct.pack('>I8', first) .. word:sub(at)}, until_when)
end

-- A part of a long post, or of what belongs to it: its kind, how many words are in the parts of this kind before it
-- (4 bytes), then words with their lengths (4 bytes) before them. Kinds: 'm' messages (store), 'k' the keys of messages
-- (remember_messages), 'c' outbox messages (send), 'b' the post's own key (remember_post). Answers the words.
local function words_in(part)
  local words, count, at = {}, 0, 6
  while at <= #part do
    count = count + 1
    words[count], at = struct.unpack('>I4c0', part, at)
  end
  return words
end

-- Whether an entry of a key stands for something now.
local function is_known(entry)
  return entry and struct.unpack('>I6', entry) > now
end

-- Whether any of the keys of new messages is known, given as `remember_messages` has them.
local function any_known(words)
  local fields = {}
  for _, word in ipairs(words) do
    if word ~= '' then
      fields[#fields + 1] = 'm' .. word:sub(25)
    end
  end
  for _, entry in ipairs(gather(keys, fields)) do
    if is_known(entry) then
      return true
    end
  end
  return false
end

-- What the driver is told instead of a post's outcome: where there is no room, or where the sweep must know of
-- the queue while outbox messages are on their way; else nil.
local function refusal(count, new_keys, has_outgoing)
  if call('HLEN', messages) + count > tonumber(ARGV[5]) then
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
  if has_outgoing and not visits and tonumber(life[N.armed] or 0) < now + ARMED / 2 then
    arm()
    return {'arm', now}
  end
end

-- Store messages in the order of the batch, all or none. Other operations wait for the longest call, so of a long post
-- the driver gives parts: this call looks up its keys, takes its positions and puts the parts aside. From then on it
-- is committed, and `publish` stores one part after the other.
-- ARGV: 1 offset, 2 version, 3 idempotency window (ms), 4 most keys, 5 most messages, 6 the post's own key
--       (remember_post; '' for none), 7 number of messages, 8 of outbox messages, 9 of keys that messages have, 10 the
--       longest ttl of the messages (ms), where parts follow, 11 what `known` has told of the queue's keys when it was
--       asked for these, or ''; then parts (words_in): first those of keys, last that of the post's own; or messages
--       (store), outbox messages (send) and, where any has one, the key of each message (remember_messages)
-- Answers: 'ok' and the first position: the messages are at consecutive ones. Or nothing was done. The
-- post's own key is known: 'repeated', and its entry (codec.py). A key stands for something else, or is that of a
-- message: 'known'; the driver looks which, leaves out messages and comes again. Full: 'full', or 'many_keys' and when
-- the oldest of them ends (ms from now). With outbox messages also 'arm' and now: the driver must register the queue
-- and come again.
operation('post', UNLESS_FULL, {whole = true, version = true}, function()
  local has_own = ARGV[6] ~= ''
  if has_own then
    local digest, text = struct.unpack(OWN_KEY, ARGV[6])
    local entry = call('HGET', keys, 'b' .. text)
    if is_known(entry) then
      return {entry:sub(8, 23) == digest and 'repeated' or 'known', entry}
    end
  end
  local is_long, count, outbox_count = ARGV[10] ~= '', tonumber(ARGV[7]), tonumber(ARGV[8])
  local words = is_long and {} or arguments(12 + count + outbox_count, #ARGV)
  local is_old, at = any_known(words), 12
  local may_be_known = is_long and ARGV[11] ~= (call('HGET', state, 'keyed') or '0')
  while may_be_known and not is_old and ARGV[at]:sub(1, 1) == 'k' do
    is_old, at = any_known(words_in(ARGV[at])), at + 1
  end
  if is_old then
    return {'known'}
  end
  local new_keys = tonumber(ARGV[9]) + (has_own and 1 or 0)
  local refused = refusal(count, new_keys, outbox_count > 0)
  if refused then
    return refused
  end
  local first, until_when = take_positions(count), now + tonumber(ARGV[3])
  if is_long then
    local fields = {0, struct.pack('>I6I8I6', now, first, until_when)}
    for i = 12, #ARGV do
      fields[2 * i - 21], fields[2 * i - 20] = i - 11, ARGV[i]
    end
    call('UNLINK', staged) -- of a post that lost its state, if any
    put('HSET', staged, fields)
    note('part', '1')
    keep(now + tonumber(ARGV[10]))
    visit(now)
  else
    store(arguments(12, 11 + count), first, now)
    remember_messages(words, first, until_when)
    send(arguments(12 + count, 11 + count + outbox_count), first)
    if has_own then
      remember_post(ARGV[6], first, until_when)
    end
  end
  return {'ok', struct.pack('>I8', first)}
end)

-- Store the next part of a post that was put aside.
-- ARGV: 1 offset
-- Answers: 'more', or 'ok' when nothing is left to do.
operation('publish', ALWAYS, {}, function()
  local number = life[N.part] or 'none'
  local head, part = unpack(call('HMGET', staged, 0, number))
  if part then -- else they are lost, and nobody must wait for them
    local at, first, until_when = struct.unpack('>I6I8I6', head)
    local kind, before = struct.unpack('>c1I4', part)
    local words = words_in(part)
    if kind == 'c' then
      send(words, first)
    elseif kind == 'k' then
      remember_messages(words, first + before, until_when)
    elseif kind == 'b' then
      remember_post(words[1], first, until_when)
    else
      store(words, first + before, at)
    end
    call('HDEL', staged, number)
    if call('HEXISTS', staged, number + 1) == 1 then
      note('part', score_of(number + 1))
      return {'more'}
    end
  end
  call('UNLINK', staged)
  call('HDEL', state, 'part')
  return {'ok'}
end)

-- Look up idempotency keys.
-- ARGV: 1 offset, 2.. fields of `keys`
-- Answers: 'ok', whether the queue remembers any key (1 or 0), what changes when it remembers others, and for each
-- field its entry, or '' if it is not remembered.
operation('known', ALWAYS, {whole = true}, function()
  local last = call('ZRANGE', forgets, -1, -1, 'WITHSCORES')[2]
  local answer = {'ok', last and tonumber(last) > now and 1 or 0, call('HGET', state, 'keyed') or '0'}
  for i, entry in ipairs(gather(keys, arguments(2, #ARGV))) do
    answer[3 + i] = is_known(entry) and entry or ''
  end
  return answer
end)
