-- Note that a queue's record is about to change. After a crash the sweep finds the note and repairs
-- the indexes of the record.
-- ARGV: 1 offset, 2 the intent
-- key intents: zset, intent by the instant it was noted; members removed when done or healed
-- include: now
redis.call('ZADD', intents, now, ARGV[2])
return {'ok'}
