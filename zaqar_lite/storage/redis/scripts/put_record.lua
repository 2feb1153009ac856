-- Write a record at its expected version.
-- refused when full
-- ARGV: 1 offset, 2 field, 3 expected version ('' for any), 4 ttl (ms, '' for none), 5 value
-- Answers: 'ok', version, deadline or 0, instant to register or 0; or 'changed'.
-- include: kind
if ARGV[3] ~= '' and live_version(redis.call('HGET', values, ARGV[2])) ~= tonumber(ARGV[3]) then
  return {'changed'}
end
local last = tonumber(redis.call('HGET', counters, 'last') or 0)
local version = math.max(last + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
local expires = ARGV[4] ~= '' and now + tonumber(ARGV[4]) or 0
redis.call('HSET', counters, 'last', string.format('%.0f', version))
redis.call('HSET', values, ARGV[2], struct.pack('>I8I6', version, expires) .. ARGV[5])
redis.call('ZADD', fields, 0, ARGV[2])
if expires == 0 then
  redis.call('ZREM', ends, ARGV[2])
  return {'ok', version, 0, 0}
end
redis.call('ZADD', ends, expires, ARGV[2])
-- A registration that is a minute overdue counts as lost: its process died before it wrote that.
local due = tonumber(redis.call('HGET', counters, 'due') or 0)
if due > 0 and due <= expires and due > now - 60000 then
  return {'ok', version, expires, 0}
end
redis.call('HSET', counters, 'due', expires)
return {'ok', version, expires, expires}
