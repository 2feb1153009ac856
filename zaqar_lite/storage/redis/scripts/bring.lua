-- Let companions into their queue; each once, however often this is repeated within a day.
-- refused when full
-- ARGV: 1 offset, 2 tag of the source, 3.. letters: sequence number (8 bytes), ttl (5 bytes, ms),
--       delay (5 bytes, ms), record from its randomness on
-- Answers: 'ok', instant to register.
-- key brought: zset, source by the sequence number of its last companion; kept for a day, expires
-- key due: zset, positions by d (ms); expires by `keep`
-- key waiting: zset, score 0, the same positions, for listing; expires by `keep`
-- include: whole ready
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
-- A sequence number is about the time in microseconds.
redis.call('ZREMRANGEBYSCORE', brought, '-inf', string.format('%.0f', (now - 86400000) * 1000))
redis.call('EXPIRE', brought, 86400)

local first = take_positions(#fresh)
local latest, soonest, first_due = now, now + 253402300799000, nil
local ready_now, priorities, delayed, delays = {}, {}, {}, {}
for i, letter in ipairs(fresh) do
  local ttl, delay = struct.unpack('>I5I5', letter, 9)
  local expires, d = now + ttl, delay > 0 and now + delay or 0
  local position = struct.pack('>I8', first + i - 1)
  latest, soonest = math.max(latest, expires), math.min(soonest, expires, d > 0 and d or expires)
  redis.call('HSET', messages, position, struct.pack('>I6I6I5I6', now, expires, ttl, d) .. letter:sub(19))
  redis.call('ZADD', expiry, string.format('%.0f', expires), position)
  if d > 0 then
    first_due = math.min(first_due or d, d)
    delayed[#delayed + 1], delays[#delays + 1] = position, string.format('%.0f', d)
  else
    ready_now[#ready_now + 1], priorities[#priorities + 1] = position, DEFAULT_PRIORITY
  end
end
keep(latest, {messages, expiry})
if #ready_now > 0 then
  enter_ready(ready_now, priorities)
end
if #delayed > 0 then
  add_to(due, delayed, delays)
  add_to(waiting, delayed)
  keep(latest, {due, waiting})
  hasten(first_due)
end
return {'ok', schedule(soonest)}
