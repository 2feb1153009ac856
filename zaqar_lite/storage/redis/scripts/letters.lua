-- What becomes of messages that fail.
-- ARGV: 5 until when the sweep is known to come to the queue ('' where it is not), 6 most claims, 7 most
--       failures, 8 the dead-letter queue's tag ('' for none), 9 ttl of letters in ms ('' for what
--       remains), 10 the source's name, 11 the delays after failures (6 bytes each), 12 jitter
-- Where the index of visits is in another server, the driver registered the queue after a call noted this
-- instant. As long as it is to come, and what is noted is no earlier one, each visit is followed by another.
local is_armed, most_claims, most_failures, target, letter_ttl, source_name, delays, jitter

local function read_policy()
  local armed_until = tonumber(ARGV[5])
  is_armed = visits or armed_until and armed_until > now and tonumber(life[N.armed] or 0) >= armed_until
  most_claims, most_failures = tonumber(ARGV[6]), tonumber(ARGV[7])
  target, letter_ttl, source_name = ARGV[8], tonumber(ARGV[9]), ARGV[10]
  delays, jitter = ARGV[11], tonumber(ARGV[12])
  if jitter then -- Redis may start every call with the same random numbers
    math.randomseed((clock[1] * 1000000 + clock[2]) % 2147483647)
  end
end

-- How long a message waits after its n-th failure.
local function backoff(failures)
  if delays == '' then
    return 0
  end
  local delay = struct.unpack('>I6', delays, 6 * math.min(failures, #delays / 6) - 5)
  if jitter then
    delay = math.floor(delay * (1 + jitter * (2 * math.random() - 1)) + 0.5)
  end
  return delay
end

-- Dead letters on their way. One call moves so many, or about STEP_BYTES: 1 ms in each of the two queues.
local LETTERS = 100

-- A letter but for its number, when it expires, its id, its history and its record: the target and the size
-- of its track, the track before the id, and what is behind it. One that is put `back` keeps the origin it
-- had, and is counted. As with attempts, what is alike in many rows is made once.
local function middle_of(row)
  local key = row.ending or row.track:sub(T.claim_count) .. row.reason
  local middle = middles[key]
  if not middle then
    local track, reason = row.track, row.reason
    if row.ending then
      track, reason = ended_track(row), row.ending.reason
    end
    local length, redriven = origin_length(track), 0
    local last, begun = track:sub(T.behind + length), track:sub(T.claimed_at, T.behind - 1)
    if row.resets then
      begun = track:sub(T.claimed_at, T.failures - 1) .. '\0\0\0\0'
    end
    local flags = bit.band(track:byte(T.flags), REMEMBERED + 7)
    if row.back then
      flags = flags + (row.until_when > 0 and WAITS or 0)
    end
    if length > 0 then
      redriven = track:byte(O.redriven)
    end
    local origin
    if row.back then
      redriven = math.min(redriven + 1, 255)
      if length > 0 and track:byte(O.behind) > 0 then -- else it came from another store, and from no queue
        origin = track:sub(O.moved_at, O.redriven - 1) .. string.char(redriven)
          .. track:sub(O.claim_count, T.behind - 1 + length)
      end
    end
    if not origin then
      local count = math.min(struct.unpack('>I4', track, T.claim_count), 16777215)
      origin = struct.pack('>I6I4', now, redriven * 16777216 + count) .. claim_of(track)
        .. struct.pack('>B', #source_name) .. source_name .. last .. reason
    end
    local before = (row.resets and '\0\0\0\0' or track:sub(T.claim_count, T.claim_id - 1)) .. claim_of(track)
      .. struct.pack('>HBI6', 32768 + O.moved_at - O.message_id + #origin, flags, 0) .. begun
    middle = {before = before, behind = origin .. last, has_id = length > 0}
    middle.head = struct.pack('>H', #target) .. target .. struct.pack('>H', T.claim_count - 1 + #before + 16 + #middle.behind)
    middles[key] = middle
  end
  return middle
end

-- What is in a queue no more, for `forget`; false stands for no track.
local function nothing_gone()
  return {positions = {}, records = {}, tracks = {}}
end

local function leave(gone, position, track, record)
  local at = #gone.positions + 1
  gone.positions[at], gone.tracks[at] = position, track
  gone.records[at] = record or call('HGET', messages, position)
end

-- Put messages into the outbox: rows of position, track, reason and perhaps the record; those whose hand-out
-- ends now have its ending and their history instead of a reason; those that are put `back` say until
-- when they are delayed, and whether their counts begin anew. They are noted in `gone`, which the caller
-- takes out of the queue; in the target they will be when the driver has drained the outbox, under the ids
-- they have. Answers the letters where the outbox was empty and they are few: who has them need not read
-- them.
local function set_aside(rows, gone)
  if #rows == 0 then
    return {}
  end
  local seq = take_positions(#rows)
  local letters, bytes, start = {}, 0, letter_ttl and struct.pack('>I6I5', now + letter_ttl, letter_ttl)
  for i, row in ipairs(rows) do
    local record = row.record or call('HGET', messages, row.position)
    local track, middle = row.track, middle_of(row)
    leave(gone, row.position, track, record)
    local id = middle.has_id and track:sub(O.message_id, O.moved_at - 1)
      or row.position .. record:sub(R.randomness, R.flags - 1)
    local lifetime = start or lifetime_of(track)
    keep((struct.unpack('>I6', lifetime)))
    if row.back then
      record = due_at(record, row.until_when)
    end
    record = join_body(row.position, record)
    local history = row.history or history_of(row.position, track)
    letters[i] = struct.pack('>I8', seq + i - 1) .. middle.head .. lifetime .. middle.before .. id
      .. middle.behind .. struct.pack('>I4', #history) .. history .. record
    bytes = bytes + #letters[i]
  end
  local length = put('RPUSH', outbox, letters)
  look_after_outbox()
  return length == #letters and length <= LETTERS and bytes < 2 * STEP_BYTES and letters or {}
end

-- Messages that fail: a later try, or the dead letters.

-- The way of failures: decides whether a message is a dead letter, else how long it waits; `wait` is set where
-- the consumer has chosen it.
local function failure(outcome, at, wait, texts)
  return {outcome = outcome, at = at, wait = wait, texts = texts, varies = jitter and not wait,
    judge = function(count, failures, chosen)
      local reason = target ~= '' and (failures >= most_failures and 'max_failures'
        or count >= most_claims and 'max_claims') or nil
      return reason, reason and 0 or chosen or backoff(failures)
    end}
end

-- End the hand-outs of rows, and give them back or, where they have a reason, set them aside; what is noted
-- in `gone` leaves the queue, and tracks change as `changes` says. Letters reach their target in the order of
-- their positions. Answers as `set_aside`.
local function let_go(rows, from, gone, changes)
  local letters, others = {}, {}
  for _, row in ipairs(rows) do
    row.number = struct.unpack('>I8', row.position)
    table.insert(row.ending.reason and letters or others, row)
  end
  table.sort(letters, function(a, b) return a.number < b.number end)
  end_attempts(rows)
  give_back(others, from, changes)
  local answer = set_aside(letters, gone)
  apply('ZREM', from, gone.positions)
  forget(gone)
  return answer
end

-- End up to `budget` leases that have lapsed, each a failure. About STEP_BYTES are read and written. Answers how many,
-- whether none is left, how many became dead letters, and whether the driver must register the queue first.
local function end_lapsed(budget)
  local positions = life[N.returns] and call('ZRANGE', lapsed, 0, budget - 1) or {}
  if #positions == 0 then
    return 0, true, 0, false
  end
  local rows, gone, moved, bytes, is_unarmed = {}, nothing_gone(), 0, 0, false
  local count, lapsing = 0, failure(LAPSED, nil, false, LAPSED_TEXTS)
  for i, track in ipairs(gather(tracks, positions)) do
    local position = positions[i]
    if not track or struct.unpack('>I6', track) <= now then
      leave(gone, position, track)
      count = count + 1
    else
      local ending = ending_of(track:sub(T.claim_count), lapsing)
      local row = {position = position, track = track, ending = ending, history = false}
      if row.ending.reason and not is_armed then
        is_unarmed = true
      elseif bytes < STEP_BYTES then
        bytes = bytes + size_of_history(position, track)
        if row.ending.reason then
          row.record = call('HGET', messages, position)
          bytes = bytes + size_of_message(row.record)
          moved = moved + 1
        end
        rows[#rows + 1] = row
      end
    end
  end
  count = count + #rows
  let_go(rows, lapsed, gone, {})
  if is_unarmed then
    arm()
  end
  return count, count == #positions and count < budget, moved, is_unarmed
end

-- Move messages that nobody holds to another queue, by way of the outbox.
-- ARGV: 1 offset, 3 delay (ms), 4 '1' to set their counts to 0; 5 to 12: policy, of which only the
--       target, the ttl and the source's name are used; 13.. ids (16 bytes each)
-- Answers: 'ok', now, a letter for each of the first ids, as many as one call may move: D done,
-- N not found, H held; then the messages, if nothing else is in the outbox. Or 'arm' and now:
-- nothing was done, and the driver must first register the queue for the sweep.
operation('move', ALWAYS, {whole = true}, function()
  read_policy()
  local delay = tonumber(ARGV[3])
  if not is_armed then
    arm()
    return {'arm', now}
  end
  local wanted = arguments(13, #ARGV)
  local live, places = locate_live(wanted), {}
  for i, id in ipairs(live.ids) do
    places[id] = i
  end

  local function track_of(i)
    local record = live.records[i]
    local expires, ttl = struct.unpack('>I6I5', record, R.expires)
    return live.tracks[i] or struct.pack('>I6I5I4', expires, ttl, 0) .. ('\0'):rep(16) .. '\128\0'
      .. ('\0'):rep(20)
  end

  local outcomes, rows, positions, bytes = {}, {}, {}, 0
  for n, id in ipairs(wanted) do
    local i = places[id]
    local track = i and live.tracks[i]
    if not i then
      outcomes[n] = 'N'
    elseif track and (has_flag(track, HELD) or has_flag(track, PARKED) and until_of(track) > now) then
      outcomes[n] = 'H'
    elseif bytes >= STEP_BYTES then
      break
    else
      outcomes[n] = 'D'
      bytes = bytes + size_of_message(live.records[i]) + size_of_history(live.positions[i], track)
      positions[#positions + 1] = live.positions[i]
      rows[#rows + 1] = {position = live.positions[i], track = track_of(i), reason = 'moved',
        record = live.records[i],
        back = true, until_when = delay > 0 and now + delay or 0, resets = ARGV[4] == '1'}
    end
  end
  leave_all(positions) -- a message whose wait is over may still be among the held
  local gone = nothing_gone()
  local letters = set_aside(rows, gone)
  forget(gone)
  return {'ok', now, table.concat(outcomes), unpack(letters)}
end)

-- Store dead letters at new positions.
local function let_in(letters, names)
  local fresh = {}
  local _, known = locate(names)
  for i, letter in ipairs(letters) do
    local track, at = struct.unpack('>Hc0', letter, 9)
    local expires = struct.unpack('>I6', track)
    if expires > now and not known[i] then
      local history, from = struct.unpack('>I4c0', letter, at)
      local record, body = split_body(letter:sub(from, from + R.randomness - 2), letter, from + R.randomness - 1)
      fresh[#fresh + 1] = {track = track, history = history, record = record, body = body, expires = expires}
      visit(expires)
    end
  end
  if #fresh == 0 then
    return
  end
  local first, entering = take_positions(#fresh), new_entries()
  local its, named, histories = {}, {}, {}
  for i, letter in ipairs(fresh) do
    local position, track, d = struct.pack('>I8', first + i - 1), letter.track, false
    if has_flag(track, WAITS) then
      track = track:sub(1, T.flags - 1) .. string.char(track:byte(T.flags) - WAITS) .. track:sub(T.held_until)
      d = struct.unpack('>I6', letter.record, R.due)
      d = d > now and d
    end
    add_entry(entering, position, score_of(letter.expires), d and score_of(d), letter.record, letter.body)
    its[2 * i - 1], its[2 * i] = position, track
    named[2 * i - 1], named[2 * i] = track:sub(O.message_id, O.moved_at - 1), position
    if letter.history ~= '' then
      histories[#histories + 1] = position
      histories[#histories + 1] = letter.history
    end
  end
  put('HSET', tracks, its)
  put('HSET', ids, named)
  put('HSET', attempts, histories)
  enter(entering)
end

-- Store what an outbox sent in its target queue: each letter once, even if the call is repeated within a day, and a
-- dead letter also as long as it is there: of two with one id only one could be settled.
-- ARGV: 1 offset, 2 tag of the source, 3.. letters: sequence number (8 bytes); then of a dead letter length of the
--       track (2 bytes), track, length of the attempts (4 bytes), attempts, record; of an outbox message 65535
--       (2 bytes), ttl (5 bytes, ms), delay (5 bytes, ms), record from its randomness on
-- Answers: 'ok'.
local function accept()
  -- A source sends its letters in the order of their numbers. So a letter is a repeat unless its
  -- number is above that of the last letter that was stored.
  local number = brought .. ARGV[2] -- a key for each source, which ends by itself
  local last, dead, names, blobs = tonumber(call('GET', number) or call('ZSCORE', brought, ARGV[2]) or 0), {}, {}, {}
  local came = last
  for i = 3, #ARGV do
    local seq, size = struct.unpack('>I8H', ARGV[i])
    if seq > last and size == 65535 then
      blobs[#blobs + 1] = ARGV[i]:sub(11)
    elseif seq > last then
      dead[#dead + 1], names[#names + 1] = ARGV[i], ARGV[i]:sub(10 + O.message_id, 9 + O.moved_at)
    end
    came = math.max(came, seq)
  end
  if came == last then
    return {'ok'}
  end
  call('SET', number, score_of(came), 'EX', 86400)
  if #dead > 0 then
    let_in(dead, names)
  end
  if #blobs > 0 then
    store(blobs, take_positions(#blobs), now)
  end
  return {'ok'}
end

operation('accept', ALWAYS, {whole = true}, accept)

-- The same for messages of another store, which take room here.
operation('import', UNLESS_FULL, {whole = true}, accept)

-- Read the first letters of the outbox.
-- Answers: the letters.
register('read_outbox', 'queue', ALWAYS, function()
  local letters, bytes = {}, 0
  while #letters < LETTERS and bytes < STEP_BYTES do
    local letter = call('LINDEX', outbox, #letters)
    if not letter then
      break
    end
    letters[#letters + 1] = letter
    bytes = bytes + #letter
  end
  return letters
end)

-- Remove from the outbox the letters that have arrived.
-- ARGV: 1 offset, 2 sequence number (8 bytes) of the last of them, 3 how many they were
-- Answers: 'ok', how many are left
register('outbox_ack', 'queue', ALWAYS, function()
  local last, count = struct.unpack('>I8', ARGV[2]), tonumber(ARGV[3])
  -- If another process has removed some of them already, the last one is nearer to the front.
  while count > 0 do
    local letter = call('LINDEX', outbox, count - 1)
    if letter and struct.unpack('>I8', letter) <= last then
      call('LTRIM', outbox, count, -1)
      break
    end
    count = count - 1
  end
  return {'ok', call('LLEN', outbox)}
end)
