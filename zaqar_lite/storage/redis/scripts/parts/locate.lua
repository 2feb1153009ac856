-- Find messages by id: position (8 bytes) and randomness (8 bytes).
-- key messages: hash, position -> record; expires by `keep`
-- key tracks: hash, position -> track of a message that was claimed or moved; expires by `keep`
-- key ids: hash, id -> position of each dead letter, whose id holds another; expires by `keep`
-- include: chunks tracks

-- Answers positions and records in the order of the ids; false where this queue has none.
local function locate(wanted)
  local positions, others = {}, {}
  for i, id in ipairs(wanted) do
    positions[i] = id:sub(1, 8)
  end
  local records = gather(messages, positions)
  for i, id in ipairs(wanted) do
    if not records[i] or records[i]:sub(24, 31) ~= id:sub(9, 16) then
      positions[i], records[i] = false, false
      others[#others + 1] = i
    end
  end
  if #others > 0 and redis.call('EXISTS', ids) == 1 then
    for _, i in ipairs(others) do
      positions[i] = redis.call('HGET', ids, wanted[i])
      records[i] = positions[i] and redis.call('HGET', messages, positions[i])
    end
  end
  return positions, records
end

-- The live ones of what was located: ids, positions, records and tracks, without gaps.
local function locate_live(wanted)
  local positions, records = locate(wanted)
  local there = {ids = {}, positions = {}, records = {}, tracks = {}}
  for i = 1, #wanted do
    if records[i] then
      local at = #there.ids + 1
      there.ids[at], there.positions[at], there.records[at] = wanted[i], positions[i], records[i]
    end
  end
  there.tracks = tracks_of(there.positions)
  local live = {ids = {}, positions = {}, records = {}, tracks = {}}
  for i, record in ipairs(there.records) do
    if expires_of(record, there.tracks[i]) > now then
      local at = #live.ids + 1
      live.ids[at], live.positions[at] = there.ids[i], there.positions[i]
      live.records[at], live.tracks[at] = record, there.tracks[i]
    end
  end
  return live
end
