-- Remove all messages and claims; keep idempotency keys, and letters that have left already.
-- ARGV: 1 offset
-- include: whole empty
empty()
return {'ok'}
