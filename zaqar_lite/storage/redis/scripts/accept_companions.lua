-- Store companions in their queue. A companion is stored once, even if the call is repeated within
-- a day.
-- ARGV: 1 offset, 2 tag of the source, 3.. letters: sequence number (8 bytes), ttl (5 bytes, ms),
--       delay (5 bytes, ms), record from its randomness on
-- Answers: 'ok', instant to register.
-- include: whole storing
local came = tonumber(redis.call('ZSCORE', brought, ARGV[2]) or 0)
local fresh = {}
for i = 3, #ARGV do
  local seq = struct.unpack('>I8', ARGV[i])
  if seq > came then
    came = seq
    fresh[#fresh + 1] = ARGV[i]
  end
end
if #fresh == 0 then
  return {'ok', 0}
end
redis.call('ZADD', brought, string.format('%.0f', came), ARGV[2])
-- Sequence numbers are times in microseconds, so this forgets sources that sent nothing for a day.
redis.call('ZREMRANGEBYSCORE', brought, '-inf', string.format('%.0f', (now - 86400000) * 1000))
redis.call('EXPIRE', brought, 86400)

local blobs = {}
for i, letter in ipairs(fresh) do
  blobs[i] = letter:sub(9)
end
local _, soonest = store(blobs, take_positions(#fresh), now, redis.call('HLEN', messages))
return {'ok', schedule(soonest)}
