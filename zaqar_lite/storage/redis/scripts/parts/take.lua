-- Take ready messages in order, for claim and pop.
-- ARGV: 3 claim id, 4 limit, 5 to 12: policy, 15 mode (I, H, E), 17 '1' for attempts too
-- include: delays failing

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
elseif mode == 'E' and limit > 0 then
  expose(math.min(limit, BUDGET))
end

-- The rows (position, record, track) of these that can be handed out, up to `room`, and those that
-- are gone or exhausted on the way; how many bytes the exhausted have; whether one came unarmed.
local function sort(positions, room)
  local records, its = gather(messages, positions), tracks_of(positions)
  local fit, gone, letters, bytes = {}, {}, {}, 0
  for i, position in ipairs(positions) do
    local record, track = records[i], its[i]
    local row = {position, record, track}
    if not record or expires_of(record, track) <= now then
      gone[#gone + 1] = row
    elseif most_claims and track and struct.unpack('>I4', track, 12) >= most_claims then
      if not is_armed then
        return fit, gone, letters, bytes, true
      end
      letters[#letters + 1] = {position = position, track = track, reason = 'max_claims'}
      bytes = bytes + #record
    elseif #fit == room then
      break
    else
      fit[#fit + 1] = row
    end
  end
  return fit, gone, letters, bytes, false
end

-- Answers status and the rows that were taken, and how many were moved. 'more': the budget ended
-- it. 'arm': a dead letter was met, and the driver must register the queue for the sweep before
-- it is in the outbox.
local function take()
  local taken, unfit, bytes, status = {}, 0, 0, 'ok'
  while #taken < limit and status == 'ok' do
    local room = math.min(limit - #taken, 1000 - spent)
    -- While nothing fits, twice as many are looked at each time.
    local positions = first_ready(math.max(room, math.min(unfit, 64)))
    local fit, gone, letters, size, must_arm = sort(positions, room)
    for _, row in ipairs(fit) do
      taken[#taken + 1] = row
    end
    leave_ready(column(fit, 1))
    leave_ready(column(gone, 1))
    forget(column(gone, 1), column(gone, 3))
    leave_ready(column(letters, 'position'))
    set_aside(letters)
    moved = moved + #letters
    unfit = unfit + #gone + #letters
    spent = spent + #gone + #letters
    bytes = bytes + size
    if must_arm then
      arm()
      status = 'arm'
    elseif #positions == 0 then
      local exposed = mode == 'E' and expose(math.min(room, BUDGET)) or 0
      spent = spent + exposed
      if exposed == 0 then
        break
      end
    end
    if status == 'ok' and #taken < limit and (spent >= BUDGET or bytes >= BYTES) then
      status = 'more'
    end
  end
  if is_unarmed then
    status = 'arm'
  elseif status == 'ok' and #taken < limit and not is_settled then
    status = 'more'
  end
  return status, taken, moved
end

-- The attempts of rows that were taken, where they are wanted.
local function histories_of(taken)
  return ARGV[17] == '1' and gather(attempts, column(taken, 1)) or nil
end

-- Append rows to an answer: position, record, track and, where they are wanted, attempts.
local function hand_out(answer, taken, histories)
  local at = #answer
  for i, row in ipairs(taken) do
    answer[at + 1], answer[at + 2], answer[at + 3] = row[1], row[2], row[3] or ''
    at = at + 3
    if histories then
      at = at + 1
      answer[at] = histories[i] or ''
    end
  end
  return answer
end
