-- Take messages out of the queue for good; they must have left the index of their state.
-- key messages: hash, position -> record; expires by `keep`
-- key tracks: hash, position -> track of a message that was claimed or moved; expires by `keep`
-- key expiry: zset, every position by its deadline (ms); expires by `keep`
-- key ids: hash, id -> position of each dead letter, whose id holds another; expires by `keep`
-- include: chunks
local function forget(positions, its)
  local moved = {}
  for i = 1, #positions do
    local track = its[i]
    if track and struct.unpack('>H', track, 32) > 0 then
      moved[#moved + 1] = track:sub(34, 49)
    end
  end
  apply('HDEL', ids, moved)
  apply('HDEL', messages, positions)
  apply('HDEL', tracks, positions)
  apply('ZREM', expiry, positions)
end

-- When a message expires: its track knows, where it has one.
local function expires_of(record, track)
  if track then
    return struct.unpack('>I6', track, 1)
  end
  return struct.unpack('>I6', record, 7)
end
