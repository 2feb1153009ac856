-- Hand out ready messages under a claim.
-- ARGV: 1 offset, 2 version, 13 claim ttl (ms), 14 grace (ms), 16 client; the others: take
-- Answers: status, now, examined, moved, instant to register; of each: see take.
-- include: whole version take
local id, ttl, grace, client = ARGV[3], tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[16]
local status, taken, moved = take()
local answer = {status, now, spent + #taken, moved, 0}
if #taken == 0 then
  local at = has_orphans() and now or first_return
  answer[5] = at and schedule(at) or 0
  return answer
end
local histories = histories_of(taken)
local deadline = now + ttl
local changes, raised, held_args = {}, {}, {}
local were_claimed = false
local begun = struct.pack('>BI6I6', HELD, deadline, now)
local begun_again = struct.pack('>BI6I6', HELD + REMEMBERED, deadline, now)
local fresh = '\128\0' .. begun .. '\0\0\0\0'
for i, row in ipairs(taken) do
  local position, record, track = row[1], row[2], row[3]
  local expires, own_ttl, count, rest = 0, 0, 0, fresh
  if track then
    expires, own_ttl, count = struct.unpack('>I6I5I4', track)
    rest = track:sub(32, 33) .. (has_flag(track, REMEMBERED) and begun_again or begun)
      .. track:sub(47, 50 + origin_length(track))
    were_claimed = true
  else
    expires, own_ttl = struct.unpack('>I6I5', record, 7)
  end
  if expires < deadline then
    own_ttl = ttl + grace
    expires = now + own_ttl
    raised[#raised + 1] = expires
    raised[#raised + 1] = position
  end
  track = struct.pack('>I6I5I4', expires, own_ttl, count + 1) .. id .. rest .. client
  changes[2 * i - 1], changes[2 * i] = position, track
  held_args[2 * i - 1], held_args[2 * i] = 0, position
  row[3] = track
end
apply('HSET', tracks, changes)
apply('ZADD', held, held_args)
local claim = redis.call('HGET', claims, id) or struct.pack('>I5I6', ttl, now)
redis.call('HSET', claims, id, claim .. table.concat(column(taken, 1)))
redis.call('ZADD', leases, deadline, id)
keep(deadline + grace, {tracks, held, claims, leases})
if #raised > 0 then
  apply('ZADD', expiry, raised)
  if were_claimed then
    keep(now, {ids, attempts})
  end
end
hasten(deadline)
answer[5] = schedule(math.min(deadline, first_return or deadline))
return hand_out(answer, taken, histories)
