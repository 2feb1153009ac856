-- Delete a queue's record at its version.
-- ARGV: 1 offset (unused), 2 version
-- Answers: 'ok', also when there was none; or 'changed'.
-- include: keys
local version = redis.call('HGET', queue, 'version')
if version and version ~= ARGV[2] then
  return {'changed'}
end
redis.call('UNLINK', queue)
return {'ok'}
