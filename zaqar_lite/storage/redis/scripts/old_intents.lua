-- Find the notes of changes that were begun half a minute ago or earlier, so a crash cut them short.
-- ARGV: 1 offset, 2 how many at most
-- key intents: zset, intent by the instant it was noted; members removed when done or healed
-- include: now
return redis.call('ZRANGEBYSCORE', intents, '-inf', now - 30000, 'LIMIT', 0, tonumber(ARGV[2]))
