-- Mend messages that an earlier version stored without a deadline or a state (see has_orphans).
-- include: claims delays forget
local function has_state(position)
  for _, key in ipairs({ready, aside, waiting, held, lapsed}) do
    if redis.call('ZSCORE', key, position) then
      return true
    end
  end
  return false
end

local function repair_one(position, record)
  local track = tracks_of({position})[1]
  local expires = expires_of(record, track)
  redis.call('ZADD', expiry, expires, position)
  keep(expires, {messages, expiry})
  if not has_state(position) then
    local d = struct.unpack('>I6', record, 18)
    if d > now then
      redis.call('ZADD', due, d, position)
      redis.call('ZADD', waiting, 0, position)
      keep(expires, {due, waiting})
    else
      make_ready({position})
    end
  end
end

-- Look at some hundred messages and mend what they lack. The cursor is in the queue's state, so that
-- the next step goes on there. Answers how many were mended, and whether all have been looked at.
local function repair()
  local cursor = redis.call('HGET', state, 'scan')
  if not cursor and not has_orphans() then
    return 0, true
  end
  local mended = 0
  local found = redis.call('HSCAN', messages, cursor or '0', 'COUNT', 100)
  for i = 1, #found[2], 2 do
    local position, record = found[2][i], found[2][i + 1]
    if not redis.call('ZSCORE', expiry, position) or not has_state(position) then
      repair_one(position, record)
      mended = mended + 1
    end
  end
  if found[1] == '0' then
    redis.call('HDEL', state, 'scan')
  else
    redis.call('HSET', state, 'scan', found[1])
    keep(now, {})
  end
  return mended, found[1] == '0'
end
