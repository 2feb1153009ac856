-- Messages that fail: a later try, or the dead letters.
-- include: policy attempts parked outbox
local LETTER_BYTES = 2097152

-- Decide what becomes of a row that has failed: `reason` where it is a dead letter, else how long it
-- waits; `wait` is set where the consumer has chosen it.
local function judge(row)
  local count, failures = struct.unpack('>I4', row.track, 12), struct.unpack('>I4', row.track, 47) + 1
  row.reason = spent_by(count, failures)
  row.wait = row.reason and 0 or row.wait or backoff(failures)
end

-- End the hand-outs of rows, and give them back or, where they have a reason, set them aside. Answers as
-- `set_aside`.
local function let_go(rows, from)
  local letters, others = {}, {}
  for _, row in ipairs(rows) do
    table.insert(row.reason and letters or others, row)
  end
  end_attempts(rows)
  give_back(others, from)
  apply('ZREM', from, column(letters, 'position'))
  return set_aside(letters)
end

-- End up to `budget` leases that have lapsed, each a failure. Answers how many, whether none is
-- left, how many became dead letters, and whether the driver must register the queue first.
local function end_lapsed(budget)
  local positions = life[5] and redis.call('ZRANGE', lapsed, 0, budget - 1) or {}
  if #positions == 0 then
    return 0, true, 0, false
  end
  local rows, gone, moved, bytes, is_unarmed = {}, {}, 0, 0, false
  for i, track in ipairs(tracks_of(positions)) do
    local position = positions[i]
    if not track or struct.unpack('>I6', track) <= now then
      gone[#gone + 1] = {position = position, track = track}
    else
      local row = {position = position, track = track, outcome = LAPSED, at = until_of(track),
        texts = LAPSED_TEXTS}
      judge(row)
      if not row.reason then
        rows[#rows + 1] = row
      elseif not is_armed then
        is_unarmed = true
      elseif bytes < LETTER_BYTES then
        bytes = bytes + redis.call('HSTRLEN', messages, position)
        moved = moved + 1
        rows[#rows + 1] = row
      end
    end
  end
  apply('ZREM', lapsed, column(gone, 'position'))
  forget(column(gone, 'position'), column(gone, 'track'))
  let_go(rows, lapsed)
  if is_unarmed then
    arm()
  end
  local count = #rows + #gone
  return count, count == #positions and count < budget, moved, is_unarmed
end
