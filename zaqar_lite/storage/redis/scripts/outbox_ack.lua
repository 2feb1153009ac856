-- Remove from the outbox the letters that have arrived.
-- ARGV: 1 sequence number (8 bytes) of the last of them, 2 how many they were
-- Answers: 'ok', how many are left
-- include: keys
local last, count = struct.unpack('>I8', ARGV[1]), tonumber(ARGV[2])
-- If another process has removed some of them already, the last one is nearer to the front.
while count > 0 do
  local letter = redis.call('LINDEX', outbox, count - 1)
  if letter and struct.unpack('>I8', letter) <= last then
    redis.call('LTRIM', outbox, count, -1)
    break
  end
  count = count - 1
end
return {'ok', redis.call('LLEN', outbox)}
