-- Take messages out of the queue for good; they must have left the index of their state.
-- key messages: hash, position -> record; expires by `keep`
-- key tracks: hash, position -> track of a message that was claimed or moved; expires by `keep`
-- key expiry: zset, every position by its deadline (ms); expires by `keep`
-- key ids: hash, id -> position of each dead letter, whose id holds another; expires by `keep`
local function forget(positions, its)
  if #positions == 0 then
    return
  end
  local moved = {}
  for i = 1, #positions do
    local track = its[i]
    if track and struct.unpack('>H', track, 32) > 0 then
      moved[#moved + 1] = track:sub(34, 49)
    end
  end
  if #moved > 0 then
    redis.call('HDEL', ids, unpack(moved))
  end
  redis.call('HDEL', messages, unpack(positions))
  redis.call('HDEL', tracks, unpack(positions))
  redis.call('ZREM', expiry, unpack(positions))
end

-- When a message expires: its track knows, where it has one.
local function expires_of(record, track)
  if track then
    return struct.unpack('>I6', track, 1)
  end
  return struct.unpack('>I6', record, 7)
end
