-- Messages that fail: a later try, or the dead letters.
-- include: policy attempts parked outbox
local LETTER_BYTES = 2097152

-- The way of failures: decides whether a message is a dead letter, else how long it waits; `wait` is set where
-- the consumer has chosen it.
local function failure(outcome, at, wait, texts)
  return {outcome = outcome, at = at, wait = wait, texts = texts, varies = jitter and not wait,
    judge = function(count, failures, chosen)
      local reason = spent_by(count, failures)
      return reason, reason and 0 or chosen or backoff(failures)
    end}
end

-- End the hand-outs of rows, and give them back or, where they have a reason, set them aside; what is noted
-- in `gone` leaves the queue, and tracks change as `changes` says. Answers as `set_aside`.
local function let_go(rows, from, gone, changes)
  local letters, others = {}, {}
  for _, row in ipairs(rows) do
    table.insert(row.ending.reason and letters or others, row)
  end
  end_attempts(rows)
  give_back(others, from, changes)
  local answer = set_aside(letters, gone)
  apply('ZREM', from, gone.positions)
  forget(gone.positions, gone.tracks)
  return answer
end

-- End the leases of `positions`, which have lapsed: each is a failure. There may be more than `budget` such.
local function end_leases(positions, budget)
  local rows, gone, moved, bytes, is_unarmed = {}, {positions = {}, tracks = {}}, 0, 0, false
  local count, lapsing = 0, failure(LAPSED, nil, false, LAPSED_TEXTS)
  for i, track in ipairs(tracks_of(positions)) do
    local position = positions[i]
    if not track or struct.unpack('>I6', track) <= now then
      leave(gone, position, track)
      count = count + 1
    else
      local row = {position = position, track = track, ending = ending_of(track:sub(12), lapsing), history = false}
      if not row.ending.reason then
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
  count = count + #rows
  let_go(rows, lapsed, gone, {})
  if is_unarmed then
    arm()
  end
  return count, count == #positions and count < budget, moved, is_unarmed
end

-- End up to `budget` leases that have lapsed, each a failure. Answers how many, whether none is
-- left, how many became dead letters, and whether the driver must register the queue first.
local function end_lapsed(budget)
  local positions = life[5] and redis.call('ZRANGE', lapsed, 0, budget - 1) or {}
  if #positions == 0 then
    return 0, true, 0, false
  end
  return end_leases(positions, budget)
end
