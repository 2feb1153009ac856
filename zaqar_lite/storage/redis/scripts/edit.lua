-- Change a message that is still delayed.
-- refused when full
-- ARGV: 1 offset, 2 version, 3 id (16 bytes), 4 ttl (ms or ''), 5 delay (ms or ''),
--       6 '1' when the body changes, 7 the body, 8 the second in which it must be due, or ''
-- Answers: 'ok', now, instant to register, position, record, track; or 'missing'; or 'refused', now,
-- when its delay ends (0 where it has none) and when it expires: domain/edits.py says why.
-- include: whole version delays forget locate
local found = locate_live({ARGV[3]})
local position, record, track = found.positions[1], found.records[1], found.tracks[1]
if not position then
  return {'missing'}
end
local d = tonumber(redis.call('ZSCORE', due, position) or 0)
local created = struct.unpack('>I6', record)
local expires, ttl = struct.unpack('>I6I5', track or record, track and 1 or 7)
if redis.call('HGET', queue, 'exposing') == '1' then
  d = 0
end
local refused = {'refused', now, d, expires}
if d <= now or (ARGV[8] ~= '' and math.floor(d / 1000) ~= tonumber(ARGV[8])) then
  return refused
end
if ARGV[4] ~= '' then
  ttl = tonumber(ARGV[4])
  expires = now + ttl
end
if ARGV[5] ~= '' then
  d = now + tonumber(ARGV[5])
end
if expires < d then
  return refused
end
local rest = record:sub(24)
if ARGV[6] == '1' then
  rest = record:sub(24, struct.unpack('>H', record, 33)) .. ARGV[7]
end
record = struct.pack('>I6I6I5I6', created, expires, ttl, d) .. rest
redis.call('HSET', messages, position, record)
redis.call('ZADD', expiry, expires, position)
keep(expires, {})
if track then -- the message was moved here from another queue
  track = struct.pack('>I6I5', expires, ttl) .. track:sub(12)
  redis.call('HSET', tracks, position, track)
  keep(expires, {tracks, ids, attempts})
end
if d <= now then
  leave_delayed({position})
  make_ready({position})
else
  redis.call('ZADD', due, d, position)
  hasten(d)
  keep(expires, {due, waiting})
end
return {'ok', now, schedule(math.min(expires, d)), position, record, track or ''}
