-- Note that a queue's record is about to change, so that the sweep mends its indexes after a crash.
-- ARGV: 1 offset, 2 the intent
-- key intents: zset, intent by the instant it was noted; members removed when done or healed
-- include: now
redis.call('ZADD', intents, now, ARGV[2])
return {'ok'}
