-- Put a name into its project's list, unless the list is full.
-- refused when full
-- ARGV: 1 name, 2 most names
-- key names: zset, score 0, the project's queues; members removed by reindexing
if not redis.call('ZSCORE', names, ARGV[1]) then
  if redis.call('ZCARD', names) >= tonumber(ARGV[2]) then
    return {'full'}
  end
  redis.call('ZADD', names, 0, ARGV[1])
end
return {'ok'}
