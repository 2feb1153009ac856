-- Remove from the outbox the letters that have arrived.
-- ARGV: 1 sequence number (8 bytes) of the last of them
-- key outbox: list, dead letters on their way; drained by outbox_ack, expires by `keep`
local last, removed = struct.unpack('>I8', ARGV[1]), 0
while removed < 1000 do
  local letter = redis.call('LINDEX', outbox, 0)
  if not letter or struct.unpack('>I8', letter) > last then
    break
  end
  redis.call('LPOP', outbox)
  removed = removed + 1
end
return {'ok', removed}
