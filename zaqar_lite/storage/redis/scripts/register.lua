-- Let the sweep visit a queue at an instant. The score changes in any case, so that a sweep that
-- has looked at the queue before notices (see reschedule).
-- ARGV: 1 tag of the queue, 2 instant (ms)
-- key visits: zset, queue by the instant of its next visit; members removed by reschedule
local old = redis.call('ZSCORE', visits, ARGV[1])
local at = tonumber(ARGV[2])
if old then
  at = math.min(at, tonumber(old) - 1)
end
redis.call('ZADD', visits, at, ARGV[1])
return {'ok'}
