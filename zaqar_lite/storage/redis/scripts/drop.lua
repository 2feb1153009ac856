-- Remove all of a queue and its record; keep letters that have left already (they belong to their
-- target), and for ten minutes the memory of letters that came (so that a late repeat of one
-- does not come again).
-- ARGV: 1 offset
-- include: whole empty
empty()
redis.call('UNLINK', keys, forgets, queue)
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
return {'ok'}
