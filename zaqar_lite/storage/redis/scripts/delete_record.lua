-- Delete a record at its version.
-- ARGV: 1 offset, 2 field, 3 expected version ('' for any)
-- Answers: 'ok' and whether there was one (0 or 1); or 'changed'.
-- include: kind
local version = live_version(redis.call('HGET', values, ARGV[2]))
if version > 0 and ARGV[3] ~= '' and version ~= tonumber(ARGV[3]) then
  return {'changed'}
end
if version > 0 then
  remove(ARGV[2])
end
return {'ok', version > 0 and 1 or 0}
