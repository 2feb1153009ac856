-- Answer 'changed' when the queue's record is not at the version the caller decided by (ARGV[2]).
-- include: keys
if ARGV[2] ~= '' and (redis.call('HGET', queue, 'version') or '0') ~= ARGV[2] then
  return {'changed'}
end
