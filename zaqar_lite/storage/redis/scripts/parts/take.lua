-- Take ready messages in order, for claim and pop.
-- ARGV: 3 claim id, 4 limit, 5 to 12: policy, 15 mode (I, H), 17 '1' for attempts too
-- include: delays failing
-- rarely: note_visit lift part reduce_claim note_returns make_ready promote end_leases leave set_aside forget arm

-- The script answers with what it has when it has examined `BUDGET` entries that are not handed out
-- (expired, exhausted, brought back), or read `BYTES` of them, about 3 ms: the next call and the
-- sweep go on.
local BUDGET, BYTES = 120, 1048576
local limit, mode = tonumber(ARGV[4]), ARGV[15]
local spent, is_settled = lapse(BUDGET / 2)
local ended, none_lapsed, moved, is_unarmed = end_lapsed(BUDGET / 2)
local returned, none_back = unpark(BUDGET / 2)
spent, is_settled = spent + ended + returned, is_settled and none_lapsed and none_back
if mode == 'H' then
  local promoted, none_due = promote(BUDGET / 2)
  spent, is_settled = spent + promoted, is_settled and none_due
end

-- Look at these in order, and add to `taken`, up to `most`, what can be handed out. Answers how many were
-- looked at; those that are gone; the exhausted, and how many bytes they have; whether one came unarmed.
local function sort(positions, taken, most)
  local records, its = gather(messages, positions), tracks_of(positions)
  local count, gone, letters, bytes = #taken.positions, {positions = {}, tracks = {}}, {}, 0
  for i, position in ipairs(positions) do
    local record, track = records[i], its[i]
    if not record or expires_of(record, track) <= now then
      leave(gone, position, track)
    elseif most_claims and track and struct.unpack('>I4', track, 12) >= most_claims then
      if not is_armed then
        return i - 1, gone, letters, bytes, true
      end
      letters[#letters + 1] = {position = position, track = track, reason = 'max_claims'}
      bytes = bytes + #record
    elseif count == most then
      return i - 1, gone, letters, bytes, false
    else
      count = count + 1
      taken.positions[count], taken.records[count], taken.tracks[count] = position, record, track
    end
  end
  return #positions, gone, letters, bytes, false
end

-- Answers status and what was taken (positions, records, tracks), and how many were moved. 'more': the
-- budget ended it. 'arm': a dead letter was met, and the driver must register the queue for the sweep
-- before it is in the outbox.
local function take()
  local taken, unfit, bytes, status = {positions = {}, records = {}, tracks = {}}, 0, 0, 'ok'
  while #taken.positions < limit and status == 'ok' do
    local room = math.min(limit - #taken.positions, 1000 - spent)
    -- While nothing fits, twice as many are looked at each time.
    local positions = first_ready(math.max(room, math.min(unfit, 64)))
    local seen, gone, letters, size, must_arm = sort(positions, taken, #taken.positions + room)
    leave_ready(seen == #positions and positions or {unpack(positions, 1, seen)})
    if #letters > 0 or #gone.positions > 0 then
      set_aside(letters, gone)
      forget(gone.positions, gone.tracks)
    end
    moved = moved + #letters
    unfit = unfit + #gone.positions
    spent = spent + #gone.positions
    bytes = bytes + size
    if must_arm then
      arm()
      status = 'arm'
    elseif #positions == 0 then
      break
    end
    if status == 'ok' and #taken.positions < limit and (spent >= BUDGET or bytes >= BYTES) then
      status = 'more'
    end
  end
  if is_unarmed then
    status = 'arm'
  elseif status == 'ok' and #taken.positions < limit and not is_settled then
    status = 'more'
  end
  return status, taken, moved
end

-- Append to an answer what was taken: position, record, track and, where they are wanted, attempts.
local function hand_out(answer, taken, histories)
  local at = #answer
  for i, position in ipairs(taken.positions) do
    answer[at + 1], answer[at + 2], answer[at + 3] = position, taken.records[i], taken.tracks[i] or ''
    at = at + 3
    if histories then
      at = at + 1
      answer[at] = histories[i] or ''
    end
  end
  return answer
end

-- The attempts of what was taken, where they are wanted.
local function histories_of(taken)
  return ARGV[17] == '1' and gather(attempts, taken.positions) or nil
end
