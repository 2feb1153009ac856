-- Claims: taking messages, and settling them.

-- A claim answers with what it has when it has examined so many entries that are not handed out (expired, exhausted,
-- brought back), read STEP_BYTES, or has no room for more bodies: the next call and the sweep go on.
local BUDGET = 120

-- Whether what was taken is all that one call may read or hand out.
local function is_full(taken)
  return taken.bytes >= STEP_BYTES or taken.room <= 0
end

-- Look at these in order, and add to `taken`, up to `most`, what can be handed out. Answers how many were looked at;
-- those that are gone; the exhausted; whether one came unarmed.
local function sort(positions, taken, most)
  local records, its = gather(messages, positions), gather(tracks, positions)
  local count, gone, letters = #taken.positions, nothing_gone(), {}
  for i, position in ipairs(positions) do
    local record, track = records[i], its[i]
    if is_full(taken) then
      return i - 1, gone, letters, false
    elseif not record or expires_of(record, track) <= now then
      leave(gone, position, track, record)
    elseif most_claims and track and struct.unpack('>I4', track, T.claim_count) >= most_claims then
      if not is_armed then
        return i - 1, gone, letters, true
      end
      letters[#letters + 1] = {position = position, track = track, reason = 'max_claims', record = record}
      taken.bytes = taken.bytes + size_of_message(record) + size_of_history(position, track)
    elseif count == most then
      return i - 1, gone, letters, false
    else
      taken.bytes = taken.bytes + (taken.is_whole and size_of_message(record) or #record)
        + (taken.has_details and size_of_history(position, track) or 0)
      taken.room = taken.room - size_of_body(record)
      count = count + 1
      taken.positions[count], taken.records[count], taken.tracks[count] = position, record, track
    end
  end
  return #positions, gone, letters, false
end

-- Answers status and what was taken (positions, records, tracks), how many entries were examined, and how many
-- moved. 'more': the budget ended it, or a dead letter that must wait; 'full': what it read did. 'arm': such a letter
-- was all that was met, and the driver must register the queue for the sweep before it is in the outbox.
local function take()
  local limit = tonumber(ARGV[4])
  local spent, is_settled = lapse(BUDGET / 2)
  local ended, none_lapsed, moved, is_unarmed = end_lapsed(BUDGET / 2)
  local returned, none_back = unpark(BUDGET / 2)
  spent, is_settled = spent + ended + returned, is_settled and none_lapsed and none_back
  if ARGV[15] == 'H' then
    local promoted, none_due = promote(BUDGET / 2)
    spent, is_settled = spent + promoted, is_settled and none_due
  end
  local taken, unfit, status = {positions = {}, records = {}, tracks = {}, bytes = 0}, 0, 'ok'
  taken.room = tonumber(ARGV[19])
  taken.is_whole, taken.has_details = ARGV[3] == '', ARGV[17] == '1' -- what else is answered of each: body, attempts
  while #taken.positions < limit and status == 'ok' do
    local room = math.min(limit - #taken.positions, 1000 - spent)
    -- While nothing fits, twice as many are looked at each time.
    local most = math.max(room, math.min(unfit, 64))
    local positions = call('ZRANGE', ready, '0', most == 1 and '0' or most - 1)
    local seen, gone, letters, must_arm = sort(positions, taken, #taken.positions + room)
    apply('ZREM', ready, seen == #positions and positions or {unpack(positions, 1, seen)})
    if #letters > 0 or #gone.positions > 0 then
      set_aside(letters, gone)
      forget(gone)
    end
    moved = moved + #letters
    unfit = unfit + #gone.positions
    spent = spent + #gone.positions
    is_unarmed = is_unarmed or must_arm
    if must_arm then
      arm()
    end
    if must_arm or #positions == 0 then
      break
    end
    if #taken.positions < limit and (spent >= BUDGET or is_full(taken)) then
      status = is_full(taken) and 'full' or 'more'
    end
  end
  if is_unarmed then
    status = #taken.positions > 0 and 'more' or 'arm'
  elseif status == 'ok' and #taken.positions < limit and not is_settled then
    status = 'more'
  end
  return status, taken, spent + #taken.positions, moved
end

-- Hand out ready messages under a claim; or remove them, where no claim id is given.
-- ARGV: 1 offset, 2 version, 3 claim id or '', 4 limit, 5 to 12: policy, 13 claim ttl (ms), 14 grace (ms),
--       15 mode (I, H), 16 client, 17 '1' for attempts too, 18 '1' when the claim may exist,
--       19 room for bodies (bytes)
-- Answers: status, now, examined, moved; of each: see take.
operation('claim', ALWAYS, {whole = true, version = true}, function()
  read_policy()
  local id, ttl, grace, client = ARGV[3], tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[16]
  local status, taken, examined, moved = take()
  local answer = {status, now, examined, moved}
  if id == '' or #taken.positions == 0 then
    show_all(answer, taken, ARGV[17])
    forget(taken)
    return answer
  end
  local deadline = now + ttl
  local changes = {}
  local begun = struct.pack('>BI6I6', HELD, deadline, now)
  local begun_again = struct.pack('>BI6I6', HELD + REMEMBERED, deadline, now)
  -- The track of one that is claimed for the first time, after when it expires.
  local fresh = '\0\0\0\1' .. id .. '\128\0' .. begun .. '\0\0\0\0' .. client
  for i, position in ipairs(taken.positions) do
    local track, rest = taken.tracks[i], fresh
    local life_of_it = track and lifetime_of(track) or taken.records[i]:sub(R.expires, R.due - 1)
    if track then
      rest = struct.pack('>I4', struct.unpack('>I4', track, T.claim_count) + 1) .. id
        .. track:sub(T.origin_size, T.flags - 1) .. (has_flag(track, REMEMBERED) and begun_again or begun)
        .. track:sub(T.failures, T.behind - 1 + origin_length(track)) .. client
    end
    if struct.unpack('>I6', life_of_it) < deadline then
      life_of_it = struct.pack('>I6I5', deadline + grace, ttl + grace)
      raise(position, deadline + grace)
    end
    track = life_of_it .. rest
    changes[2 * i - 1], changes[2 * i], taken.tracks[i] = position, track, track
  end
  put('HSET', tracks, changes)
  add_to(held, taken.positions)
  local claim = ARGV[18] == '1' and call('HGET', claims, id) or struct.pack('>I5I6', ttl, now)
  put('HSET', claims, {id, claim .. table.concat(taken.positions)})
  put('ZADD', leases, {deadline, id})
  keep(deadline + grace)
  ready_at(deadline)
  show_all(answer, taken, ARGV[17])
  return answer
end)

-- The live messages that a live claim holds, by their positions: ids (the same), positions, records and tracks.
local function held_now(id)
  local claim = call('HGET', claims, id)
  local positions, its = held_by(id, claim or '', true)
  return live_of(positions, positions, gather(messages, positions), its), claim
end

-- Read a live claim and the live messages it holds.
-- ARGV: 1 offset, 2 claim id, 3 '1' for attempts too
-- Answers: 'ok', now, ttl, start, then what `show_all` gives; or 'missing', also for a claim that holds nothing.
operation('get_claim', ALWAYS, {}, function()
  local found, claim = held_now(ARGV[2])
  if #found.positions == 0 then
    return {'missing'}
  end
  local answer = {'ok', now, (struct.unpack('>I5', claim)), (struct.unpack('>I6', claim, 6))}
  show_all(answer, found, ARGV[3])
  return answer
end)

-- Settle messages of a claim: do to each what its consumer asks for.
-- ARGV: 1 offset, 2 version, 3 claim id, 4 '1' for all that the claim holds, which is then told no ids; 5 to 12:
--       policy; 13.. pairs of a settlement and the ids (16 bytes each) of consecutive messages that it is for. A
--       settlement is: act, two durations (6 bytes each, ms), reason and detail as attempts have them.
--       Acts: A acknowledge; R release and F fail, with a delay; E extend, with ttl and grace, which for all are
--       the claim's own from now on; X dead
-- Answers: 'ok', moved, a letter for each of the first ids, as many as one call may settle: D done,
-- N not found, L lapsed, H held by another, T no target; whether there are more (1 or 0); and the dead letters as they
-- are in the outbox, or none if the driver must read the outbox. Or 'arm' and now: nothing was done, and the driver must
-- first register the queue for the sweep.
operation('settle', ALWAYS, {version = true}, function()
  read_policy()
  local NO_DELAY = 281474976710655
  local claim_id, whole = ARGV[3], nil
  if ARGV[4] == '1' then
    whole = held_now(claim_id)
  end

  local wanted, said, count = {}, {}, 0
  for n = 13, #ARGV, 2 do
    local words, named = ARGV[n], ARGV[n + 1]
    local act, first, second = struct.unpack('>c1I6I6', words)
    local texts, delay = words:sub(14), first ~= NO_DELAY and first
    -- The settlement, with how it ends the attempts of its messages.
    local what = {outcome = RELEASED, at = now, wait = delay or 0, texts = texts}
    if act == 'F' then
      what = failure(FAILED, now, delay, texts)
    elseif act == 'X' then
      what = {outcome = DEAD, at = now, wait = 0, texts = texts, reason = texts:sub(2, 1 + texts:byte(1))}
    end
    what.act, what.first, what.second = act, first, second
    for at = 1, #named, 16 do
      count = count + 1
      wanted[count], said[count] = named:sub(at, at + 15), what
    end
    for i, position in ipairs(whole and whole.ids or {}) do
      wanted[i], said[i] = position, what
    end
  end
  local live, places = whole or locate_live(wanted), {}
  for i, id in ipairs(live.ids) do
    places[id] = i
  end

  -- Deleted messages; rows of messages that are released or become dead letters (failing); positions and tracks of
  -- extended messages, of whose leases the first ends at `first_end`.
  local gone, rows, changes, left_claim = nothing_gone(), {}, {}, {count = 0}
  local moved, first_end, bytes = 0, nil, 0

  local function extend(i, track, what)
    local until_when, lifetime, rest = now + what.first, lifetime_of(track), track:sub(T.claim_count)
    if struct.unpack('>I6', lifetime) < until_when then
      lifetime = struct.pack('>I6I5', until_when + what.second, what.first + what.second)
      raise(live.positions[i], until_when + what.second)
    end
    what[rest] = what[rest] or rest:sub(1, S.held_until - 1) .. struct.pack('>I6', until_when) .. rest:sub(S.claimed_at)
    changes[#changes + 1] = live.positions[i]
    changes[#changes + 1] = lifetime .. what[rest]
    first_end = math.min(first_end or until_when, until_when)
  end

  local function let_go_of(i, track, what)
    local position = live.positions[i]
    left_claim[position], left_claim.count = true, left_claim.count + 1
    if what.act == 'A' then
      leave(gone, position, track, live.records[i])
      return
    end
    local row = {position = position, track = track, ending = ending_of(track:sub(T.claim_count), what),
      record = live.records[i], history = false}
    rows[#rows + 1] = row
    bytes = bytes + size_of_history(position, track)
    if row.ending.reason then
      bytes, moved = bytes + size_of_message(row.record), moved + 1
    end
  end

  local function outcome_of(what, i)
    if not i then
      return 'N'
    end
    local track = live.tracks[i]
    local is_its = track and claim_of(track) == claim_id
    if is_held(track) then
      if not is_its then
        return 'H'
      elseif what.act == 'X' and target == '' then
        return 'T'
      elseif what.act == 'E' then
        extend(i, track, what)
      else
        let_go_of(i, track, what)
      end
      return 'D'
    end
    local ended = is_its and bit.band(track:byte(T.flags), 7)
    local was_released = ended == RELEASED or ended == FAILED
    return was_released and (what.act == 'R' or what.act == 'F') and 'D' or 'L'
  end

  local outcomes = {}
  for n, id in ipairs(wanted) do
    if bytes >= STEP_BYTES then
      break
    end
    outcomes[n] = outcome_of(said[n], places[id])
  end
  if moved > 0 and not is_armed then
    raised = {}
    arm()
    return {'arm', now}
  end

  local letters = let_go(rows, held, gone, changes)
  local claim = call('HGET', claims, claim_id)
  if whole and first_end then
    claim = struct.pack('>I5I6', said[1].first, now) .. claim:sub(12)
  end
  if claim and (first_end or left_claim.count > 0) then
    reduce_claim(claim_id, claim, left_in(claim, left_claim))
    if first_end then
      call('ZADD', leases, 'XX', 'LT', first_end, claim_id)
    end
  end
  if first_end then
    ready_at(first_end)
  end
  return {'ok', moved, table.concat(outcomes), #outcomes < #wanted and 1 or 0, letters}
end)
