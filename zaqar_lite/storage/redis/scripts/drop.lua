-- Remove a queue's messages, keys and record. Letters in the outbox stay, because they belong to
-- their target queue. The numbers of letters that the queue has received stay for ten minutes, so
-- that a letter that is sent again late is not stored again.
-- ARGV: 1 offset
-- include: whole empty
empty()
redis.call('UNLINK', keys, forgets, queue)
redis.call('EXPIRE', inbox, 600)
if redis.call('EXISTS', outbox) == 0 then
  redis.call('UNLINK', state)
  if life[1] and life[6] then
    -- The queue has sent letters. If it is made again, its letters need higher numbers than these,
    -- even after a failover that sets the clock back. The target would take lower ones for repeats.
    redis.call('HSET', state, 'last', life[1])
    redis.call('EXPIRE', state, 86400)
  end
end
return {'ok'}
