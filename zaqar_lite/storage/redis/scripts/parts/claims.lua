-- Claims: what they hold, and how their leases lapse.
-- include: ready tracks

-- The positions in a claim's record, after its ttl (5 bytes) and start (6 bytes).
local function positions_in(claim)
  local positions = {}
  for at = 12, #claim, 8 do
    positions[#positions + 1] = claim:sub(at, at + 7)
  end
  return positions
end

-- The positions in a claim's record but those in `gone`, of which `count` at least are in it.
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

-- What of a claim it has not let go: positions and tracks. A message that left the queue has no
-- track; one that another claim took has another id in it.
local function held_by(id, claim)
  local positions, mine, its = positions_in(claim), {}, {}
  for i, track in ipairs(tracks_of(positions)) do
    if track and track:sub(16, 31) == id and has_flag(track, HELD) then
      mine[#mine + 1] = positions[i]
      its[#its + 1] = track
    end
  end
  return mine, its
end

-- Take claimed and parked messages out of the indexes of their states.
local function leave_held(positions)
  apply('ZREM', held, positions)
  if life[5] then
    apply('ZREM', lapsed, positions)
    apply('ZREM', parked, positions)
  end
end

-- Let a claim hold only these positions, of whose leases the first ends at `soonest`; a claim
-- ends with its last message.
local function reduce_claim(id, claim, left, soonest)
  if #left > 0 then
    redis.call('HSET', claims, id, claim:sub(1, 11) .. table.concat(left))
    if soonest then
      redis.call('ZADD', leases, soonest, id)
    end
  else
    redis.call('HDEL', claims, id)
    redis.call('ZREM', leases, id)
  end
end

-- Take messages out of the claims that hold them. Those whose lease has lapsed are in no record any
-- more, so they do not count (`left_in`).
local function leave_claims(positions, its)
  local leaving = {}
  for i, position in ipairs(positions) do
    if its[i] and has_flag(its[i], HELD) then
      local id = its[i]:sub(16, 31)
      local gone = leaving[id] or {count = 0}
      leaving[id], gone[position] = gone, true
    end
  end
  for id, gone in pairs(leaving) do
    local claim = redis.call('HGET', claims, id)
    if claim then
      reduce_claim(id, claim, left_in(claim, gone))
    end
  end
end

-- The lapsed and the others of what a claim holds: `over` and `left` are positions; and when the
-- first lease of those left ends.
local function part(id, claim)
  local positions, its = held_by(id, claim)
  local over, left, soonest = {}, {}, nil
  for i, position in ipairs(positions) do
    local until_when = until_of(its[i])
    if until_when <= now then
      over[#over + 1] = position
    else
      left[#left + 1] = position
      soonest = math.min(soonest or until_when, until_when)
    end
  end
  return over, left, soonest
end

-- Whether a claim was there whose leases had not lapsed, when `lapse` looked last.
local has_claims = false

-- Notice the leases that have lapsed, up to `budget` entries; at least one claim, which holds at
-- most 500. What becomes of their messages is decided by who knows the policy (`end_lapsed`).
-- Answers how many entries that took, and whether no lapsed lease is left.
local function lapse(budget)
  local count = 0
  while count < budget do
    local first = redis.call('ZRANGE', leases, '0', '0', 'WITHSCORES')
    local id = first[1]
    if not id or tonumber(first[2]) > now then
      has_claims = id
      return count, true
    end
    local claim = redis.call('HGET', claims, id)
    local size = claim and (#claim - 11) / 8 or 0
    if count > 0 and count + size > budget then
      break
    end
    count = count + math.max(1, size)
    local over, left, soonest = {}, {}, nil
    if claim then
      over, left, soonest = part(id, claim)
    end
    reduce_claim(id, claim, left, soonest)
    if #over > 0 then
      apply('ZREM', held, over)
      add_to(lapsed, over)
      keep(now, {lapsed})
      note_returns()
    end
  end
  return count, false
end
