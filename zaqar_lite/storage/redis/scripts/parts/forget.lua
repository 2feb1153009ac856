-- Take messages out of the queue for good; they must have left the index of their state.
-- include: chunks tracks groups
local function forget(positions, its)
  if life[8] then
    leave_groups(positions)
  end
  local moved, remembered = {}, {}
  for i = 1, #positions do
    local track = its[i]
    if track and origin_length(track) > 0 then
      moved[#moved + 1] = track:sub(51, 66)
    end
    if track and has_flag(track, REMEMBERED) then
      remembered[#remembered + 1] = positions[i]
    end
  end
  apply('HDEL', ids, moved)
  apply('HDEL', attempts, remembered)
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
