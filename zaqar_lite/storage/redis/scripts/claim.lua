-- Hand out ready messages under a claim.
-- ARGV: 1 offset, 2 version, 5 claim ttl (ms), 6 grace (ms), 8 client; the others: take
-- Answers: status, now, examined, moved, instant to register; position, record, track of each.
-- include: version take
local id, ttl, grace = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6])
local status, taken, moved = take()
local answer = {status, now, spent + #taken, moved, 0}
if #taken == 0 then
  answer[5] = has_orphans() and schedule(now) or 0
  return answer
end
local deadline = now + ttl
local changes, raised, held_args = {}, {}, {}
local letters = false
for i, row in ipairs(taken) do
  local position, record, track = row[1], row[2], row[3]
  local expires, own_ttl, count, origin = 0, 0, 0, '\0\0'
  if track then
    expires, own_ttl, count = struct.unpack('>I6I5I4', track)
    local length = struct.unpack('>H', track, 32)
    origin = track:sub(32, 33 + length)
    letters = letters or length > 0
  else
    expires, own_ttl = struct.unpack('>I6I5', record, 7)
  end
  if expires < deadline then
    own_ttl = ttl + grace
    expires = now + own_ttl
    raised[#raised + 1] = expires
    raised[#raised + 1] = position
  end
  track = struct.pack('>I6I5I4', expires, own_ttl, count + 1) .. id .. origin .. ARGV[8]
  changes[2 * i - 1], changes[2 * i] = position, track
  held_args[2 * i - 1], held_args[2 * i] = 0, position
  local at = 3 * i + 3
  answer[at], answer[at + 1], answer[at + 2] = position, record, track
end
apply('HSET', tracks, changes)
apply('ZADD', held, held_args)
local claim = redis.call('HGET', claims, id) or struct.pack('>I5I6', ttl, now)
redis.call('HSET', claims, id, claim .. table.concat(column(taken, 1)))
redis.call('ZADD', leases, deadline, id)
keep(deadline + grace, {tracks, held, claims, leases})
if #raised > 0 then
  apply('ZADD', expiry, raised)
  if letters then
    keep(now, {ids})
  end
end
answer[5] = schedule(deadline)
return answer
