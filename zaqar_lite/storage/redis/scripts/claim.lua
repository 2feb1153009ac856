-- Hand out ready messages under a claim.
-- ARGV: 1 offset, 2 version, 13 claim ttl (ms), 14 grace (ms), 16 client, 18 '1' when the
--       claim may exist; the others: take
-- Answers: status, now, examined, moved, instant to register; of each: see take.
-- include: whole version take
local id, ttl, grace, client = ARGV[3], tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[16]
local status, taken, moved = take()
local answer = {status, now, spent + #taken.positions, moved, 0}
if #taken.positions == 0 then
  answer[5] = first_return and schedule(first_return) or 0
  return answer
end
local histories = histories_of(taken)
local deadline = now + ttl
local changes, raised, were_claimed = {}, {}, false
local begun = struct.pack('>BI6I6', HELD, deadline, now)
local begun_again = struct.pack('>BI6I6', HELD + REMEMBERED, deadline, now)
-- The track of one that is claimed for the first time, after when it expires.
local fresh = '\0\0\0\1' .. id .. '\128\0' .. begun .. '\0\0\0\0' .. client
for i, position in ipairs(taken.positions) do
  local track, rest = taken.tracks[i], fresh
  local life_of_it = track and track:sub(1, 11) or taken.records[i]:sub(7, 17)
  if track then
    rest = struct.pack('>I4', struct.unpack('>I4', track, 12) + 1) .. id .. track:sub(32, 33)
      .. (has_flag(track, REMEMBERED) and begun_again or begun) .. track:sub(47, 50 + origin_length(track)) .. client
    were_claimed = true
  end
  if struct.unpack('>I6', life_of_it) < deadline then
    life_of_it = struct.pack('>I6I5', deadline + grace, ttl + grace)
    raised[#raised + 1] = score_of(deadline + grace)
    raised[#raised + 1] = position
  end
  track = life_of_it .. rest
  changes[2 * i - 1], changes[2 * i], taken.tracks[i] = position, track, track
end
apply('HSET', tracks, changes)
add_to(held, taken.positions)
local claim = ARGV[18] == '1' and redis.call('HGET', claims, id) or struct.pack('>I5I6', ttl, now)
redis.call('HSET', claims, id, claim .. table.concat(taken.positions))
redis.call('ZADD', leases, deadline, id)
keep(deadline + grace, {})
-- While a claim lives none of these keys ends. So they live long enough already if the horizon is that of then.
local is_kept = life[9] and tonumber(life[9]) == tonumber(life[2])
if not (has_claims and is_kept) then
  keep(now, {tracks, held, claims, leases})
  if not is_kept then
    redis.call('HSET', state, 'kept', life[2])
  end
end
if #raised > 0 then
  apply('ZADD', expiry, raised)
  if were_claimed then
    keep(now, {ids, attempts})
  end
end
hasten(deadline)
answer[5] = schedule(math.min(deadline, first_return or deadline))
return hand_out(answer, taken, histories)
