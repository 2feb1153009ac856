-- Read a live record.
-- ARGV: 1 offset, 2 field
-- Answers: 'ok' and the record, '' when there is none.
-- include: kind
local record = redis.call('HGET', values, ARGV[2])
return {'ok', is_live(record) and record or ''}
