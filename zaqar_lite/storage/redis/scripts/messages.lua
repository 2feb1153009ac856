-- Notice the leases that have lapsed and make ready what is due, up to `budget` entries of each. Answers nil,
-- or 'again' where that alone used up this call: the driver repeats it.
local function catch_up(budget)
  local noticed, none_lapsed = lapse(budget)
  local promoted, none_due = promote(budget / 2)
  local returned, none_back = unpark(budget / 2)
  if not (none_lapsed and none_due and none_back) then
    return {'again', now, noticed + promoted + returned}
  end
end

-- List live messages by position.
-- ARGV: 1 offset, 2 version, 3 marker (position or ''), 4 its id or '', 5 until (position or ''),
--       6 its id or '', 7 limit, 8 client to leave out or '', 9 'c' and 'd': claimed, delayed too,
--       10 '1' for attempts too, 11 length of a group (1 byte) and group, or '', 12 room for bodies (bytes)
-- Answers: 'ok', now, examined, position of the last entry examined or '', '1' at the end;
-- of each what `show_all` gives.
operation('list', ALWAYS, {whole = true, version = true}, function()
  local behind = catch_up(450)
  if behind then
    return behind
  end
  local function resolve(position, id)
    local at = id ~= '' and locate({id})[1] or ''
    return at ~= '' and at or position
  end
  local after = resolve(ARGV[3], ARGV[4])
  local last = resolve(ARGV[5], ARGV[6])
  local limit, group, room = tonumber(ARGV[7]), ARGV[11], tonumber(ARGV[12])
  local low, high = after == '' and '-' or '(' .. group .. after, last == '' and '+' or '[' .. group .. last
  local sources = {ready}
  if life[N.returns] then
    sources[#sources + 1] = lapsed
  end
  if ARGV[9]:find('d') then
    sources[#sources + 1] = waiting
  end
  if ARGV[9]:find('c') then
    sources[#sources + 1] = held
  end
  if group ~= '' then
    sources = {groups}
    low = after == '' and '[' .. group or low
    high = last == '' and '(' .. group .. ('\255'):rep(9) or high
  end

  -- Whether a message of a group, which may be in any state, is in one that is wanted.
  local function is_wanted(position, track)
    return group == '' or (ARGV[9]:find('d') or not call('ZSCORE', waiting, position))
      and (ARGV[9]:find('c') or not track or until_of(track) <= now
        or not (has_flag(track, HELD) or has_flag(track, PARKED)))
  end

  -- The next `count` positions over all sources, in order (by number: Lua compares strings by
  -- locale).
  local function following(count)
    local found, numbers = {}, {}
    for _, source in ipairs(sources) do
      for _, position in ipairs(call('ZRANGEBYLEX', source, low, high, 'LIMIT', 0, count)) do
        found[#found + 1] = position:sub(-8)
      end
    end
    if #sources > 1 then
      for i, position in ipairs(found) do
        numbers[i] = struct.unpack('>I8', position)
      end
      table.sort(numbers)
      found = {}
      for i = 1, math.min(count, #numbers) do
        found[i] = struct.pack('>I8', numbers[i])
      end
    end
    return found
  end

  -- The script answers with what it has when it has examined this many, in under a millisecond: the driver goes on.
  local budget = 250
  local last, is_end = '', ''
  local shown, examined, bytes, found = 0, 0, 0, {positions = {}, records = {}, tracks = {}}
  while shown < limit and room > 0 and examined < budget and bytes < STEP_BYTES do
    local count = math.min(limit, budget - examined, 100)
    local positions = following(count)
    local records = gather(messages, positions)
    local its = gather(tracks, positions)
    for i, position in ipairs(positions) do
      local record, track = records[i], its[i]
      examined = examined + 1
      bytes = bytes + (record and #record or 0) + (ARGV[10] == '1' and size_of_history(position, track) or 0)
      last = position
      if record and expires_of(record, track) > now
          and (ARGV[8] == '' or record:sub(R.behind, R.behind - 1 + #ARGV[8]) ~= ARGV[8])
          and is_wanted(position, track) then
        shown = shown + 1
        found.positions[shown], found.records[shown], found.tracks[shown] = position, record, track
        room = room - size_of_body(record)
        if shown == limit or room <= 0 then
          break
        end
      end
    end
    if #positions < count and shown < limit and room > 0 then
      is_end = '1'
      break
    end
    low = '(' .. group .. last
  end
  local answer = {'ok', now, examined, last, is_end}
  show_all(answer, found, ARGV[10])
  return answer
end)

-- Fetch live messages by id.
-- ARGV: 1 offset, 2 '1' for attempts too, 3.. ids (16 bytes each)
-- Answers: 'ok', now; then what `show_all` gives of each message that was found.
operation('get', ALWAYS, {whole = true}, function()
  local answer = {'ok', now}
  local found = locate_live(arguments(3, #ARGV))
  show_all(answer, found, ARGV[2])
  return answer
end)

-- Change a message that is still delayed.
-- ARGV: 1 offset, 2 version, 3 id (16 bytes), 4 ttl (ms or ''), 5 delay (ms or ''),
--       6 '1' when the body changes, 7 the body, 8 the second in which it must be due, or ''
-- Answers: 'ok', now, position, record with its body, track; or 'missing'; or 'refused', now,
-- when its delay ends (0 where it has none) and when it expires: domain/refusals.py says why.
operation('edit', UNLESS_FULL, {whole = true, version = true}, function()
  local found = locate_live({ARGV[3]})
  local position, record, track = found.positions[1], found.records[1], found.tracks[1]
  if not position then
    return {'missing'}
  end
  local d = tonumber(call('ZSCORE', due, position) or 0)
  local created = struct.unpack('>I6', record)
  local expires, ttl = struct.unpack('>I6I5', track or record, track and T.expires or R.expires)
  if call('HGET', queue, 'exposing') == '1' then
    d = 0
  end
  local refused = {'refused', now, d, expires}
  if d <= now or (ARGV[8] ~= '' and math.floor(d / 1000) ~= tonumber(ARGV[8])) then
    return refused
  end
  if ARGV[4] ~= '' then
    ttl = tonumber(ARGV[4])
    expires = now + ttl
  end
  if ARGV[5] ~= '' then
    d = now + tonumber(ARGV[5])
  end
  if expires < d then
    return refused
  end
  -- It leaves the queue, but for what else belongs to its id, and enters again at its position.
  local whole, body = join_body(position, record), nil
  if ARGV[6] == '1' then
    whole = whole:sub(1, struct.unpack('>H', whole, R.body_at)) .. ARGV[7]
  end
  leave_delayed({position})
  forget({positions = {position}, records = {record}, tracks = {false}})
  -- Who has read a record without its body comes for that.
  record, body = split_body(struct.pack('>I6I6I5I6', created, expires, ttl, d), whole, R.randomness, is_apart(record))
  local entering = new_entries()
  add_entry(entering, position, score_of(expires), d > now and score_of(d), record, body)
  enter(entering)
  visit(expires)
  if track then -- the message was moved here from another queue
    track = struct.pack('>I6I5', expires, ttl) .. track:sub(T.claim_count)
    put('HSET', tracks, {position, track})
    written[ids], written[attempts] = true, true
  end
  return {'ok', now, position, join_body(position, record), track or ''}
end)

-- Delete messages, all or none.
-- ARGV: 1 offset, 2 'any' (regardless of claims) or 'held', 3 number of claim ids n,
--       4..3+n claim ids, 4+n.. ids (16 bytes each)
-- Answers: 'ok'; or 'refused' and, for each that is, its id and 'claimed' or 'free'.
operation('delete', ALWAYS, {whole = true}, function()
  local count = tonumber(ARGV[3])
  local named = {}
  for i = 4, 3 + count do
    named[ARGV[i]] = true
  end
  local found = locate_live(arguments(4 + count, #ARGV))
  local refused = {'refused'}
  for i, id in ipairs(ARGV[2] == 'held' and found.ids or {}) do
    local track, reason = found.tracks[i], count > 0 and 'free'
    if is_held(track) then
      reason = not named[claim_of(track)] and 'claimed'
    end
    if reason then
      refused[#refused + 1] = id
      refused[#refused + 1] = reason
    end
  end
  if #refused > 1 then
    return refused
  end
  leave_all(found.positions)
  leave_claims(found.positions, found.tracks)
  forget(found)
  return {'ok'}
end)

-- Cut all messages into ranges of about equal size: the last position of each range, one behind the
-- other. The cuts are estimated from samples of each index.
local function cuts_of(sources, most)
  local samples, cuts, total = {}, {}, 0
  for _, source in ipairs(sources) do
    total = total + call('ZCARD', source)
  end
  -- Of up to 400 messages all are read; of more, each that has `step` others of its index behind it, from the last on.
  local step = math.max(1, math.ceil(total / 400))
  for _, source in ipairs(sources) do
    for rank = call('ZCARD', source) - 1, 0, -step do
      samples[#samples + 1] = struct.unpack('>I8', call('ZRANGE', source, rank, rank)[1])
    end
  end
  table.sort(samples)
  local ranges = math.min(most, #samples)
  for range = 1, ranges do
    cuts[range] = struct.pack('>I8', samples[math.floor(#samples * range / ranges)])
  end
  return table.concat(cuts)
end

-- Count live messages by state; find the oldest and the newest.
-- ARGV: 1 offset, 2 most ranges to cut them into, 0 for none
-- Answers: 'ok', now, ready, delayed, claimed, bytes, what `cuts_of` gives; then what `show_all` gives of the
-- oldest and the newest, and for the first ready one.
operation('stats', ALWAYS, {whole = true}, function()
  local expired, has_more = expire(300) -- so that the indexes count live messages only
  local behind = has_more and {'again', now, expired} or catch_up(300)
  if behind then
    return behind
  end
  local sources = {ready, waiting, held, lapsed} -- every message is in one of them
  local waiting_again = call('ZCARD', parked)
  local answer = {'ok', now,
    call('ZCARD', ready) + call('ZCARD', lapsed),
    call('ZCARD', waiting) + waiting_again, call('ZCARD', held) - waiting_again, tonumber(life[N.bytes] or 0),
    ARGV[2] == '0' and '' or cuts_of(sources, tonumber(ARGV[2]))}
  local shown = {}
  for _, rank in ipairs({0, -1}) do
    local best
    for _, source in ipairs(sources) do
      local position = call('ZRANGE', source, rank, rank)[1]
      if position then
        local number = struct.unpack('>I8', position)
        if not best or (rank == 0 and number < best) or (rank == -1 and number > best) then
          best = number
        end
      end
    end
    shown[#shown + 1] = best and struct.pack('>I8', best)
  end
  shown[#shown + 1] = call('ZRANGE', ready, 0, 0)[1] or call('ZRANGE', lapsed, 0, 0)[1]
  local records, is_whole = gather(messages, shown), true
  for i = 1, #shown do
    is_whole = is_whole and records[i] -- else somebody deleted the key: claims and expiry tidy up
  end
  show_all(answer, is_whole and {positions = shown, records = records, tracks = gather(tracks, shown)} or nothing_gone())
  return answer
end)

-- Tell when something next becomes ready by time.
-- ARGV: 1 offset
-- Answers: milliseconds until then, -1 when nothing waits.
operation('next_due', ALWAYS, {}, function()
  if call('EXISTS', lapsed) == 1 then
    return {0}
  end
  local first = -1
  for _, key in ipairs({leases, due, parked}) do
    local score = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if score then
      local left = math.max(0, score - now)
      first = first < 0 and left or math.min(first, left)
    end
  end
  return {first}
end)

-- Make delayed messages ready before their delay has ended: their `d` becomes now. Expired ones are removed first.
-- ARGV: 1 offset, 2 version, 3 how many at most (250)
-- Answers: 'ok', and how many.
operation('release_delayed', ALWAYS, {whole = true, version = true}, function()
  local expired, has_more = expire(400)
  if has_more then
    return {'again', now, expired}
  end
  local positions = call('ZRANGE', due, 0, tonumber(ARGV[3]) - 1)
  leave_delayed(positions)
  for i, record in ipairs(gather(messages, positions)) do
    if record and struct.unpack('>I6', record, R.due) > now then
      call('HSET', messages, positions[i], due_at(record, now))
    end
  end
  make_ready(positions)
  return {'ok', #positions}
end)

-- Remove all messages and claims; keep idempotency keys, and letters that have left already.
-- ARGV: 1 offset
operation('purge', ALWAYS, {whole = true}, function()
  empty()
  return {'ok'}
end)

-- Remove a queue's messages, keys and record. Letters in the outbox stay, because they belong to
-- their target queue. The numbers of letters that the queue has received stay for a day, so that a
-- letter that is sent again late is not stored again.
-- ARGV: 1 offset
operation('drop', ALWAYS, {whole = true}, function()
  empty()
  call('UNLINK', keys, forgets, queue)
  if call('EXISTS', outbox) == 0 then
    call('UNLINK', state)
    if life[N.last] then
      -- If the queue is made again, its positions must be higher than these, even after a failover that sets the
      -- clock back: a reader would pass them, and the target of its letters would take lower numbers for repeats.
      -- A clock is set back by minutes at most, and short-lived queues must not leave a key for a day.
      call('HSET', state, 'last', life[N.last])
      call('EXPIRE', state, life[N.armed] and 86400 or 900)
    end
  end
  return {'ok'}
end)
