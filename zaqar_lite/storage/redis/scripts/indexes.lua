-- The track of a message: what changes of it (codec.py has the layout).
local RELEASED, FAILED, LAPSED, DEAD = 1, 2, 3, 4
local HELD, PARKED, REMEMBERED = 8, 16, 32
local WAITS = 64 -- of a letter on its way: it is delayed where it comes to

-- When it expires, and its ttl, as they are stored.
local function lifetime_of(track)
  return track:sub(T.expires, T.claim_count - 1)
end

-- The claim that held it last.
local function claim_of(track)
  return track:sub(T.claim_id, T.origin_size - 1)
end

-- A record that is due at an instant.
local function due_at(record, instant)
  return record:sub(1, R.due - 1) .. struct.pack('>I6', instant) .. record:sub(R.randomness)
end

local function until_of(track)
  return (struct.unpack('>I6', track, T.held_until))
end

local function has_flag(track, flag)
  return bit.band(track:byte(T.flags), flag) ~= 0
end

-- Whether a live claim holds the message. Decided by the lease's end, noticed or not.
local function is_held(track)
  return track and has_flag(track, HELD) and until_of(track) > now
end

local function origin_length(track)
  return struct.unpack('>H', track, T.origin_size) - 32768
end

-- Add to a zset. `scores` is one for all or a list, best as text: Redis writes out each number that
-- it is given. All are '0' where there is none.
local function add_to(key, positions, scores)
  local both, one = {}, type(scores) ~= 'table' and (scores or '0')
  for i, position in ipairs(positions) do
    both[2 * i - 1], both[2 * i] = one or scores[i], position
  end
  put('ZADD', key, both)
end

-- Make messages ready, each at its own position.
local function make_ready(positions)
  if #positions > 0 then
    call('SPUBLISH', readiness, #positions)
    add_to(ready, positions)
  end
end

-- Delayed messages: by the field `d`, and by position.
local function leave_delayed(positions)
  apply('ZREM', due, positions)
  apply('ZREM', waiting, positions)
end

-- Make ready what is due, up to `budget`. Answers how many, and whether nothing due is left.
local function promote(budget)
  local positions = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, budget)
  if #positions > 0 then
    leave_delayed(positions)
    make_ready(positions)
  end
  return #positions, #positions < budget
end

-- Which messages are in which group. Queues without any are spared the look.
local function is_grouped(record)
  return bit.band(record:byte(R.flags), 4) > 0
end

local function membership(record, position)
  local at = R.behind -- the client
  at = at + (record:byte(at) == 0 and 3 + struct.unpack('>H', record, at + 1) or 17)
  return record:sub(at, at + record:byte(at)) .. position
end

-- Note messages, each at the same place in both lists, in their groups.
local function join_groups(positions, records)
  local members = {}
  for i, record in ipairs(records) do
    members[2 * i - 1], members[2 * i] = '0', membership(record, positions[i])
  end
  put('ZADD', groups, members)
  note('grouped', '1')
end

-- A large body is not in its record, which ends in the body's size (4 bytes) instead: most operations read records
-- and need no body, and Lua copies whatever it reads.
local APART, LARGE = 8, 2048 -- the flag, which is the highest one, and bytes

-- About how many bytes of records and bodies one call reads: half a millisecond.
local STEP_BYTES = 196608

local function is_apart(record)
  return record:byte(R.flags) >= APART
end

-- How many bytes the body of a record has, and whether it is apart.
local function size_of_body(record)
  local flags, body_at = struct.unpack('>BH', record, R.flags)
  if flags >= APART then
    return struct.unpack('>I4', record, #record - 3), true
  end
  return #record - body_at, false
end

-- How many bytes a message has: its record with its body.
local function size_of_message(record)
  return #record + (is_apart(record) and size_of_body(record) or 0)
end

-- The record that begins with `head`, up to where its randomness is, and goes on as `from` does at a place; and its
-- body, where that is large, or was (`stays_apart`).
local function split_body(head, from, at, stays_apart)
  local flags, body_at = struct.unpack('>BH', from, at + R.flags - R.randomness)
  body_at = body_at + at + 1 - R.randomness
  local size = #from - body_at + 1
  if size <= LARGE and not stays_apart then
    return head .. from:sub(at)
  end
  return head .. from:sub(at, at + R.flags - R.randomness - 1) .. string.char(flags + APART)
    .. from:sub(at + R.body_at - R.randomness, body_at - 1) .. struct.pack('>I4', size), from:sub(body_at)
end

-- A record with the body that is apart.
local function join_body(position, record)
  if not is_apart(record) then
    return record
  end
  return record:sub(1, R.flags - 1) .. string.char(record:byte(R.flags) - APART) .. record:sub(R.body_at, -5)
    .. (call('HGET', bodies, position) or '')
end

-- Messages that enter the queue: lists for `enter`.
local function new_entries()
  return {bytes = 0, records = {}, bodies = {}, deadlines = {}, grouped = {}, members = {}, ready = {}, delayed = {},
    ends = {}}
end

-- Add one that enters at a position, with its record and its body (split_body), and the scores by which it expires and
-- is due (as text; d is false where it is ready at once).
local function add_entry(entering, position, expires, d, record, body)
  local at = #entering.records + 1
  if body then
    local last = #entering.bodies + 1
    entering.bodies[last], entering.bodies[last + 1] = position, body
  end
  entering.records[at], entering.records[at + 1] = position, record
  entering.deadlines[at], entering.deadlines[at + 1] = expires, position
  entering.bytes = entering.bytes + size_of_body(record)
  if is_grouped(record) then
    local last = #entering.grouped + 1
    entering.grouped[last], entering.members[last] = position, record
  end
  if d then
    local last = #entering.delayed + 1
    entering.delayed[last], entering.ends[last] = position, d
    ready_at(tonumber(d))
  else
    entering.ready[#entering.ready + 1] = position
  end
end

-- Store messages, and put them into the indexes of their states.
local function enter(entering)
  local add = (life[N.bytes] or '0') == '0' and put or apply -- where messages are, these two keys have their end
  add('HSET', messages, entering.records)
  add('ZADD', expiry, entering.deadlines)
  put('HSET', bodies, entering.bodies)
  add_bytes(entering.bytes)
  if #entering.grouped > 0 then
    join_groups(entering.grouped, entering.members)
  end
  make_ready(entering.ready)
  if #entering.delayed > 0 then
    add_to(due, entering.delayed, entering.ends)
    add_to(waiting, entering.delayed)
  end
end

-- Take messages out of the queue for good: positions, records and tracks; false where there is none. They must
-- have left the index of their state.
local function forget(gone)
  local positions, members, moved, remembered, large, bytes = gone.positions, {}, {}, {}, {}, 0
  for i = 1, #positions do
    local record, track = gone.records[i], gone.tracks[i]
    if record then
      local size, apart = size_of_body(record)
      bytes = bytes + size
      if apart then
        large[#large + 1] = positions[i]
      end
      if life[N.grouped] and is_grouped(record) then
        members[#members + 1] = membership(record, positions[i])
      end
    end
    if track and origin_length(track) > 0 then
      moved[#moved + 1] = track:sub(O.message_id, O.moved_at - 1)
    end
    if track and has_flag(track, REMEMBERED) then
      remembered[#remembered + 1] = positions[i]
    end
  end
  apply('ZREM', groups, members)
  apply('HDEL', ids, moved)
  apply('HDEL', attempts, remembered)
  apply('HDEL', bodies, large)
  apply('HDEL', messages, positions)
  apply('HDEL', tracks, positions)
  apply('ZREM', expiry, positions)
  add_bytes(-bytes)
end

-- When a message expires: its track knows, where it has one.
local function expires_of(record, track)
  if track then
    return struct.unpack('>I6', track, T.expires)
  end
  return struct.unpack('>I6', record, R.expires)
end

-- Find messages by id: position (8 bytes) and randomness (8 bytes), or any text of one that was moved here.
-- Answers positions and records in the order of the ids; '' and false where this queue has none.
local function locate(wanted)
  local moved, positions = call('EXISTS', ids) == 1 and gather(ids, wanted) or {}, {}
  for i, id in ipairs(wanted) do
    positions[i] = moved[i] or id:sub(1, 8)
  end
  local records = gather(messages, positions)
  for i, id in ipairs(wanted) do
    local record = records[i]
    if not record or not moved[i] and record:sub(R.randomness, R.flags - 1) ~= id:sub(9, 16) then
      positions[i], records[i] = '', false
    end
  end
  return positions, records
end

-- Of ids, positions, records and tracks the live ones, without gaps.
local function live_of(ids, positions, records, its)
  local count, named, places, kept, theirs = 0, {}, {}, {}, {}
  for i, record in ipairs(records) do
    if record and expires_of(record, its[i]) > now then
      count = count + 1
      named[count], places[count], kept[count], theirs[count] = ids[i], positions[i], record, its[i]
    end
  end
  return {ids = named, positions = places, records = kept, tracks = theirs}
end

local function locate_live(wanted)
  local positions, records = locate(wanted)
  return live_of(wanted, positions, records, gather(tracks, positions))
end

-- Claims: what they hold, and how their leases lapse.

-- The positions in a claim's record, after its ttl (5 bytes) and start (6 bytes), but those in `gone`, of which
-- `count` at least are in it.
local function left_in(claim, gone)
  local left, count = {}, 0
  if gone.count < (#claim - 11) / 8 then
    for at = 12, #claim, 8 do
      local position = claim:sub(at, at + 7)
      if not gone[position] then
        count = count + 1
        left[count] = position
      end
    end
  end
  return left
end

-- What of a claim it has not let go: positions and tracks; `live` if only those whose leases go on. A message that
-- left the queue has no track; one that another claim took has another id in it.
local function held_by(id, claim, live)
  local positions, mine, its = left_in(claim, {count = 0}), {}, {}
  for i, track in ipairs(gather(tracks, positions)) do
    if track and claim_of(track) == id and has_flag(track, HELD) and (not live or until_of(track) > now) then
      mine[#mine + 1] = positions[i]
      its[#its + 1] = track
    end
  end
  return mine, its
end

-- Take claimed and parked messages out of the indexes of their states.
local function leave_held(positions)
  apply('ZREM', held, positions)
  if life[N.returns] then
    apply('ZREM', lapsed, positions)
    apply('ZREM', parked, positions)
  end
end

-- Take messages out of the indexes of their states, whichever these are.
local function leave_all(positions)
  apply('ZREM', ready, positions)
  leave_delayed(positions)
  leave_held(positions)
end

-- Let a claim hold only these positions, of whose leases the first ends at `soonest`; a claim
-- ends with its last message.
local function reduce_claim(id, claim, left, soonest)
  if #left > 0 then
    put('HSET', claims, {id, claim:sub(1, 11) .. table.concat(left)})
    if soonest then
      put('ZADD', leases, {soonest, id})
    end
  else
    call('HDEL', claims, id)
    call('ZREM', leases, id)
  end
end

-- Take messages out of the claims that hold them. Those whose lease has lapsed are in no record any
-- more, so they do not count (`left_in`).
local function leave_claims(positions, its)
  local leaving = {}
  for i, position in ipairs(positions) do
    if its[i] and has_flag(its[i], HELD) then
      local id = claim_of(its[i])
      local gone = leaving[id] or {count = 0}
      leaving[id], gone[position] = gone, true
    end
  end
  for id, gone in pairs(leaving) do
    local claim = call('HGET', claims, id)
    if claim then
      reduce_claim(id, claim, left_in(claim, gone))
    end
  end
end

-- Notice the leases that have lapsed, up to `budget` entries; at least one claim, which holds at
-- most 200. What becomes of their messages is decided by who knows the policy (`end_lapsed`).
-- Answers how many entries that took, and whether no lapsed lease is left.
local function lapse(budget)
  local count = 0
  while count < budget do
    local first = call('ZRANGE', leases, '0', '0', 'WITHSCORES')
    local id = first[1]
    if not id or tonumber(first[2]) > now then
      return count, true
    end
    local claim = call('HGET', claims, id)
    local size = claim and (#claim - 11) / 8 or 0
    if count > 0 and count + size > budget then
      break
    end
    count = count + math.max(1, size)
    local over, left, soonest = {}, {}, nil -- of its positions; when the first lease of those left ends
    local positions, its = held_by(id, claim or '')
    for i, position in ipairs(positions) do
      local until_when = until_of(its[i])
      if until_when <= now then
        over[#over + 1] = position
      else
        left[#left + 1] = position
        soonest = math.min(soonest or until_when, until_when)
      end
    end
    reduce_claim(id, claim, left, soonest)
    if #over > 0 then
      apply('ZREM', held, over)
      add_to(lapsed, over)
      note('returns', '1') -- queues without any are spared the look
    end
  end
  return count, false
end

-- The history of a message's hand-outs: the first one and the last ones (domain/attempts.py).
local LAPSED_TEXTS = '\6lapsed\255\255'

-- What comes of a hand-out that ends in some way, by the `rest` of its message's track, from the claim count
-- on: the attempt as it is stored; its size as the domain counts it, without the lengths of texts; whether it
-- continues a history; the rest of the track from now on; until when the message is parked, or nil; and the reason
-- where it is a dead letter.
-- A way is: outcome, texts (reason and detail), at (when it ended, nil for the lease's end), wait (how long the
-- message waits from then on) and reason; and for failures, whose wait may be false, judge (failing). The
-- messages of a claim mostly differ in when they expire alone, so what is alike is made once and kept in the way.
local function ending_of(rest, way)
  if way[rest] then
    return way[rest]
  end
  local count, failures, client = struct.unpack('>I4', rest), struct.unpack('>I4', rest, S.failures), nil
  local at, wait, reason = way.at or struct.unpack('>I6', rest, S.held_until), way.wait, way.reason
  if way.judge then
    failures = failures + 1
    reason, wait = way.judge(count, failures, wait)
  end
  client = rest:sub(struct.unpack('>H', rest, S.origin_size) - 32768 + S.behind)
  local kind, ended = client:byte(1), struct.pack('>I6I6B', at, wait, way.outcome) .. way.texts
  local size = 64 + (kind == 1 and 36 or kind == 2 and 32 or #client - 3) + #way.texts - 3
  local until_when = at + wait > now and at + wait or nil
  local flags = way.outcome + REMEMBERED + (until_when and PARKED or 0)
  local ending = {size = size, until_when = until_when, reason = reason,
    goes_on = bit.band(rest:byte(S.flags), REMEMBERED) ~= 0,
    attempt = struct.pack('>HH', 10 + #ended + #client, size) .. rest:sub(1, S.claim_id - 1)
      .. rest:sub(S.claimed_at, S.failures - 1) .. ended
      .. client,
    rest = rest:sub(1, S.flags - 1) .. struct.pack('>BI6', flags, until_when or 0)
      .. rest:sub(S.claimed_at, S.failures - 1) .. struct.pack('>I4', failures) .. rest:sub(S.behind)}
  if not way.varies then
    way[rest] = ending
  end
  return ending
end

-- The track of a row from now on.
local function ended_track(row)
  return lifetime_of(row.track) .. row.ending.rest
end

-- The hand-outs of a message that have ended; '' where it has none.
local function history_of(position, track)
  return track and has_flag(track, REMEMBERED) and call('HGET', attempts, position) or ''
end

-- How many bytes that has.
local function size_of_history(position, track)
  return track and has_flag(track, REMEMBERED) and call('HSTRLEN', attempts, position) or 0
end

-- A history with another attempt behind it. The first one and the last ones stay.
local function with_attempt(history, attempt, size)
  if not history then
    return attempt
  end
  local begins, sizes, total, at = {}, {}, size, 1
  while at < #history do
    local length, bytes = struct.unpack('>HH', history, at)
    begins[#begins + 1], sizes[#sizes + 1] = at, bytes
    total = total + bytes
    at = at + 4 + length
  end
  local kept = 2
  while kept <= #begins and (#begins + 3 - kept > MOST_ATTEMPTS or total > MOST_BYTES) do
    total = total - sizes[kept]
    kept = kept + 1
  end
  if kept == 2 then
    return history .. attempt
  end
  return history:sub(1, begins[2] - 1) .. history:sub(begins[kept] or at) .. attempt
end

-- Write down the hand-outs that end: rows of position, track and ending. The history of one that is a dead
-- letter is noted in its row, for it leaves.
local function end_attempts(rows)
  if #rows == 0 then
    return
  end
  local positions, histories, changes = {}, {}, {}
  for i, row in ipairs(rows) do
    if row.ending.goes_on then
      positions[#positions + 1] = row.position
    end
  end
  for i, history in ipairs(gather(attempts, positions)) do
    histories[positions[i]] = history or nil
  end
  for _, row in ipairs(rows) do
    local ending = row.ending
    local history = with_attempt(histories[row.position], ending.attempt, ending.size)
    if ending.reason then
      row.history = history
    else
      changes[#changes + 1] = row.position
      changes[#changes + 1] = history
    end
  end
  put('HSET', attempts, changes)
end

-- Parked messages: given back with a delay that is not over; they are in `held` too, for listing.
-- Make ready what has waited long enough, up to `budget`. Answers how many, and whether none is left.
local function unpark(budget)
  if not life[N.returns] then
    return 0, true
  end
  local positions = call('ZRANGEBYSCORE', parked, '-inf', now, 'LIMIT', 0, budget)
  if #positions > 0 then
    apply('ZREM', parked, positions)
    apply('ZREM', held, positions)
    make_ready(positions)
  end
  return #positions, #positions < budget
end

-- Make ready, or park, messages whose hand-out has ended: rows of position, track and ending. `from` is the
-- index they are in, held or lapsed; their tracks are stored with the other `changes` (positions and
-- tracks).
local function give_back(rows, from, changes)
  local back, waiting_on, ends = {}, {}, {}
  for _, row in ipairs(rows) do
    local track, until_when = ended_track(row), row.ending.until_when
    if until_when then
      local expires = struct.unpack('>I6', track)
      if expires < until_when + MARGIN then
        expires = until_when + MARGIN
        track = struct.pack('>I6I5', expires, expires - now) .. track:sub(T.claim_count)
        raise(row.position, expires)
      end
      waiting_on[#waiting_on + 1] = row.position
      ends[#ends + 1] = score_of(until_when)
      ready_at(until_when)
    else
      back[#back + 1] = row.position
    end
    changes[#changes + 1] = row.position
    changes[#changes + 1] = track
  end
  put('HSET', tracks, changes)
  apply('ZREM', from, back)
  make_ready(back)
  if #waiting_on > 0 then
    if from ~= held then
      apply('ZREM', from, waiting_on)
      add_to(held, waiting_on)
    end
    add_to(parked, waiting_on, ends)
    note('returns', '1')
  end
end

-- Remove what has expired, whatever its state: up to `budget`, and about STEP_BYTES, because the records are
-- read to count the bytes that go. Answers how many, and whether there may be more.
local function expire(budget)
  local found, positions, bytes = call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, budget), {}, 0
  while #positions < #found and bytes < STEP_BYTES do
    positions[#positions + 1] = found[#positions + 1]
    bytes = bytes + call('HSTRLEN', messages, positions[#positions])
  end
  if #positions > 0 then
    local gone = {positions = positions, records = gather(messages, positions), tracks = gather(tracks, positions)}
    leave_all(positions)
    forget(gone)
  end
  return #positions, #positions == budget or #positions < #found
end

-- Remove all messages and claims of a queue.
local function empty()
  call('UNLINK', messages, bodies, tracks, ready, due, waiting, held, claims, leases, lapsed, parked,
    attempts, expiry, ids, groups)
  call('HDEL', state, 'bytes')
end

-- Append messages to an answer: position, record and track of each, and its attempts where `details` is '1'. The
-- driver reads the large bodies, unless the messages are whole (`is_whole`).
local function show_all(answer, found, details)
  local at, width, records, its = #answer, details == '1' and 4 or 3, found.records, found.tracks
  for i, position in ipairs(found.positions) do
    local track = its[i] or ''
    answer[at + 1], answer[at + 2], answer[at + 3] = position, records[i], track
    if found.is_whole then
      answer[at + 2] = join_body(position, records[i])
    end
    if width == 4 then
      answer[at + 4] = history_of(position, its[i])
    end
    at = at + width
  end
end
