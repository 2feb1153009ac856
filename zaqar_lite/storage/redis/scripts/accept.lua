-- Let dead letters into their target queue; each once, however often this is repeated.
-- ARGV: 1 offset, 2 tag of the source, 3.. letters: sequence number (8 bytes), length of the
--       track (2 bytes), track, record
-- Answers: 'ok', instant to register.
-- key inbox: hash, source -> sequence number of its last letter; expires
-- key tracks: hash, position -> track of a message that was claimed or moved; expires by `keep`
-- key expiry: zset, every position by its deadline (ms); expires by `keep`
-- key ids: hash, id -> position of each dead letter, whose id holds another; expires by `keep`
-- include: ready
-- Letters leave a source in the order of their numbers, so one that is not above the last that
-- came is a repeat.
local came = tonumber(redis.call('HGET', inbox, ARGV[2]) or 0)
local fresh, latest, soonest = {}, now, 0
for i = 3, #ARGV do
  local seq, length = struct.unpack('>I8H', ARGV[i])
  if seq > came then
    came = seq
    local track, record = ARGV[i]:sub(11, 10 + length), ARGV[i]:sub(11 + length)
    local expires = struct.unpack('>I6', track)
    if expires > now then
      fresh[#fresh + 1] = {track, record, expires}
      latest = math.max(latest, expires)
      soonest = soonest == 0 and expires or math.min(soonest, expires)
    end
  end
end
redis.call('HSET', inbox, ARGV[2], string.format('%.0f', came))
keep(now + 86400000, {inbox})
if #fresh == 0 then
  return {'ok', 0}
end
local first = take_positions(#fresh)
local positions, priorities = {}, {}
for i, letter in ipairs(fresh) do
  local position = struct.pack('>I8', first + i - 1)
  positions[i], priorities[i] = position, priority_of(letter[2])
  redis.call('HSET', messages, position, letter[2])
  redis.call('HSET', tracks, position, letter[1])
  redis.call('ZADD', expiry, letter[3], position)
  redis.call('HSET', ids, letter[1]:sub(34, 49), position)
end
keep(latest, {messages, tracks, expiry, ids})
enter_ready(positions, priorities)
return {'ok', schedule(soonest)}
