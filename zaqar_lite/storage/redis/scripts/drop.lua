-- Remove all of a queue and its record; keep letters that have left already (they belong to their
-- target), and for ten minutes the memory of letters that came (so that a late repeat of one
-- does not come again).
-- ARGV: 1 offset
-- Answers: 'ok', and the metadata of the record that was removed, or ''.
-- key queue: hash, the queue's record; deleted by drop and delete_queue
-- key outbox: list, letters and companions on their way; drained by outbox_ack, expires by `keep`
-- key inbox: hash, source -> sequence number of its last letter; expires
-- key keys: hash, 'b' or 'm' and idempotency key -> entry (codec.py); expires by `keep`
-- key forgets: zset, the same fields by deadline; expires by `keep`
-- include: whole expire
local metadata = redis.call('HGET', queue, 'metadata')
redis.call('UNLINK', messages, tracks, ready, ranked, aside, due, waiting, held, claims, leases, lapsed, parked,
  attempts,
  expiry, ids, groups, keys, forgets, queue)
redis.call('EXPIRE', inbox, 600)
if redis.call('EXISTS', outbox) == 0 then
  redis.call('UNLINK', state)
  if life[1] and life[6] then
    -- Letters have left. If the queue is made again, its letters must have higher numbers, even if a failover
    -- sets the clock back: their target takes others for repeats.
    redis.call('HSET', state, 'last', life[1])
    redis.call('EXPIRE', state, 86400)
  end
end
return {'ok', metadata or ''}
