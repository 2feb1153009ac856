-- What is noted of a queue, read once; its places in the list are those of the names.
-- include: keys now
local life = redis.call('HMGET', state, 'last', 'horizon', 'due', 'ranked', 'returns', 'armed', 'part',
  'grouped', 'kept')
