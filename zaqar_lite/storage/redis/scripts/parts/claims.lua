-- Claims: what they hold, and how they end.
-- key tracks: hash, position -> track of a message that was claimed or moved; expires by `keep`
-- key held: zset, score 0, positions held by claims; expires by `keep`
-- key claims: hash, claim id -> ttl, start, held positions; expires by `keep`
-- key leases: zset, claim id by deadline; expires by `keep`
-- include: ready

-- The positions in a claim's record, after its ttl (5 bytes) and start (6 bytes).
local function positions_in(claim)
  local positions = {}
  for at = 12, #claim, 8 do
    positions[#positions + 1] = claim:sub(at, at + 7)
  end
  return positions
end

-- What of a claim is still held by it: positions and tracks. A message that left the queue has
-- no track; one that another claim took has another id in it.
local function held_by(id, claim)
  local positions, mine, its = positions_in(claim), {}, {}
  if #positions > 0 then
    for i, track in ipairs(gather(tracks, positions)) do
      if track and track:sub(16, 31) == id then
        mine[#mine + 1] = positions[i]
        its[#its + 1] = track
      end
    end
  end
  return mine, its
end

-- End a claim: what it holds is ready at once. Answers how many entries that took.
local function end_claim(id)
  local claim = redis.call('HGET', claims, id)
  redis.call('ZREM', leases, id)
  redis.call('HDEL', claims, id)
  if not claim then
    return 0
  end
  local positions = held_by(id, claim)
  if #positions > 0 then
    apply('ZREM', held, positions)
    make_ready(positions)
  end
  return (#claim - 11) / 8
end

-- Take messages that leave the queue for good out of their claims; a claim ends with its last one.
local function leave_claims(positions, its)
  local leaving = {}
  for i, position in ipairs(positions) do
    if its[i] then
      local id = its[i]:sub(16, 31)
      leaving[id] = leaving[id] or {}
      leaving[id][position] = true
    end
  end
  for id, gone in pairs(leaving) do
    local claim = redis.call('HGET', claims, id)
    local left = {}
    for _, position in ipairs(claim and positions_in(claim) or {}) do
      if not gone[position] then
        left[#left + 1] = position
      end
    end
    if #left > 0 then
      redis.call('HSET', claims, id, claim:sub(1, 11) .. table.concat(left))
    elseif claim then
      redis.call('HDEL', claims, id)
      redis.call('ZREM', leases, id)
    end
  end
end

-- End lapsed claims, up to `budget` entries; at least one, and a claim holds at most 500. Answers
-- how many entries that took, whether no lapsed claim is left, and how many claims it were.
local function lapse(budget)
  local count, ended = 0, 0
  while count < budget do
    local due = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)
    if #due == 0 then
      return count, true, ended
    end
    local size = (redis.call('HSTRLEN', claims, due[1]) - 11) / 8
    if count > 0 and count + size > budget then
      break
    end
    count = count + math.max(1, end_claim(due[1]))
    ended = ended + 1
  end
  return count, false, ended
end

-- Whether a track's claim is live. Decided by the lease's deadline, swept or not; asked once.
local live_claims = {}
local function is_held(track)
  if not track then
    return false
  end
  local id = track:sub(16, 31)
  if live_claims[id] == nil then
    local deadline = redis.call('ZSCORE', leases, id)
    live_claims[id] = deadline and tonumber(deadline) > now or false
  end
  return live_claims[id]
end
