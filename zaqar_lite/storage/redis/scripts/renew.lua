-- Extend a live claim. The messages that it holds expire no earlier than the claim.
-- ARGV: 1 offset, 2 claim id, 3 ttl (ms), 4 grace (ms)
-- Answers: 'ok' and the instant to register; or 'missing'.
-- include: claims
local id, ttl, grace = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local claim = redis.call('HGET', claims, id)
if not claim then
  return {'missing'}
end
local deadline = now + ttl
local positions, its = held_by(id, claim)
local changes, raised, soonest = {}, {}, deadline
for i, position in ipairs(positions) do
  local track = its[i]
  local expires, own_ttl = struct.unpack('>I6I5', track)
  if not is_held(track) or expires <= now then
    soonest = math.min(soonest, until_of(track))
  else
    if expires < deadline then
      own_ttl = ttl + grace
      expires = now + own_ttl
      raised[#raised + 1] = expires
      raised[#raised + 1] = position
    end
    changes[#changes + 1] = position
    changes[#changes + 1] = struct.pack('>I6I5', expires, own_ttl) .. track:sub(12, 34)
      .. struct.pack('>I6', deadline) .. track:sub(41)
  end
end
if #changes == 0 then
  return {'missing'}
end
apply('HSET', tracks, changes)
apply('ZADD', expiry, raised)
redis.call('HSET', claims, id, struct.pack('>I5I6', ttl, now) .. table.concat(positions))
redis.call('ZADD', leases, soonest, id)
keep(deadline + grace, {messages, expiry, ids, attempts, tracks, held, claims, leases})
return {'ok', schedule(deadline)}
