-- After a visit, note the next visit or forget the queue. Do neither if the queue was registered
-- again during the visit.
-- ARGV: 1 tag of the queue, 2 the score that was seen, 3 the next instant (ms), 0 for none
-- key visits: zset, queue by the instant of its next visit; members removed by reschedule
local score = redis.call('ZSCORE', visits, ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) then
  if ARGV[3] == '0' then
    redis.call('ZREM', visits, ARGV[1])
  else
    redis.call('ZADD', visits, ARGV[3], ARGV[1])
  end
end
return {'ok'}
