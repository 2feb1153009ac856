-- Let a live claim live on, and what it holds at least as long.
-- ARGV: 1 offset, 2 claim id, 3 ttl (ms), 4 grace (ms)
-- Answers: 'ok' and the instant to register; or 'missing'.
-- key ids: hash, id -> position of each dead letter, whose id holds another; expires by `keep`
-- key expiry: zset, every position by its deadline (ms); expires by `keep`
-- include: claims
local id, ttl, grace = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local old = redis.call('ZSCORE', leases, id)
local claim = redis.call('HGET', claims, id)
if not claim or not old or tonumber(old) <= now then
  return {'missing'}
end
local deadline = now + ttl
local positions, its = held_by(id, claim)
if #positions == 0 then
  return {'missing'}
end
for i, position in ipairs(positions) do
  if struct.unpack('>I6', its[i]) < deadline then
    local track = struct.pack('>I6I5', deadline + grace, ttl + grace) .. its[i]:sub(12)
    redis.call('HSET', tracks, position, track)
    redis.call('ZADD', expiry, deadline + grace, position)
  end
end
redis.call('HSET', claims, id, struct.pack('>I5I6', ttl, now) .. table.concat(positions))
redis.call('ZADD', leases, deadline, id)
keep(deadline + grace, {messages, expiry, ids, tracks, held, claims, leases})
return {'ok', schedule(deadline)}
