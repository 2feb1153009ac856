-- Find the intents of changes that must have been cut short: noted half a minute ago.
-- ARGV: 1 offset, 2 how many at most
-- key intents: zset, intent by the instant it was noted; members removed when done or healed
-- include: now
return redis.call('ZRANGEBYSCORE', intents, '-inf', now - 30000, 'LIMIT', 0, tonumber(ARGV[2]))
