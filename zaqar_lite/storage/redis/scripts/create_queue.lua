-- Create a queue's record unless it exists.
-- refused when full
-- ARGV: 1 offset, 2 metadata (JSON)
-- Answers: 'created' or 'exists', version, metadata, '1' if exposing.
-- include: keys now
local record = redis.call('HMGET', queue, 'version', 'metadata', 'exposing')
if record[1] then
  return {'exists', unpack(record)}
end
local version = string.format('%.0f', clock[1] * 1000000 + clock[2] + offset * 1000)
redis.call('HSET', queue, 'version', version, 'metadata', ARGV[2], 'exposing', '')
return {'created', version, ARGV[2], ''}
