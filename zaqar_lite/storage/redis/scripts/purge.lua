-- Remove all messages and claims; keep idempotency keys, and letters that have left already.
-- ARGV: 1 offset
-- include: whole expire
redis.call('UNLINK', messages, tracks, ready, ranked, aside, due, waiting, held, claims, leases, lapsed, parked,
  attempts,
  expiry, ids, groups)
return {'ok'}
