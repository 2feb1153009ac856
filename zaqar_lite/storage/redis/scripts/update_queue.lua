-- Replace a queue's record at its version.
-- refused when full
-- ARGV: 1 offset, 2 version, 3 metadata (JSON), 4 '1' if exposing
-- Answers: 'ok' and the new version; or 'changed'.
-- include: now version
local after = math.max(tonumber(ARGV[2]) + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
after = string.format('%.0f', after)
redis.call('HSET', queue, 'version', after, 'metadata', ARGV[3], 'exposing', ARGV[4])
return {'ok', after}
