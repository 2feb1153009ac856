-- Find queues that must be visited now.
-- ARGV: 1 offset, 2 how many at most
-- Answers: now; tags and scores.
-- key visits: zset, queue by the instant of its next visit; members removed by reschedule
-- include: now
return {now, redis.call('ZRANGEBYSCORE', visits, '-inf', now, 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))}
