-- Find messages by id: position (8 bytes) and randomness (8 bytes).
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
    local names, known, at = {}, {}, {}
    for n, i in ipairs(others) do
      names[n] = wanted[i]
    end
    for n, position in ipairs(gather(ids, names)) do
      positions[others[n]] = position
      if position then
        known[#known + 1], at[#at + 1] = position, others[n]
      end
    end
    for n, record in ipairs(gather(messages, known)) do
      records[at[n]] = record
    end
  end
  return positions, records
end

-- Of lists that belong together what `is_kept` tells by the place.
local function only(lists, is_kept)
  local kept, count = {ids = {}, positions = {}, records = {}, tracks = {}}, 0
  for i = 1, #lists.ids do
    if is_kept(i) then
      count = count + 1
      for name, values in pairs(lists) do
        kept[name][count] = values[i]
      end
    end
  end
  return kept
end

-- The live ones of what was located: ids, positions, records and tracks, without gaps.
local function locate_live(wanted)
  local live, is_whole, is_live = {ids = wanted}, true, true
  live.positions, live.records = locate(wanted)
  for i = 1, #wanted do
    is_whole = is_whole and live.records[i]
  end
  if not is_whole then
    live = only(live, function(i) return live.records[i] end)
  end
  live.tracks = tracks_of(live.positions)
  local function has_time(i)
    return expires_of(live.records[i], live.tracks[i]) > now
  end
  for i = 1, #live.ids do
    is_live = is_live and has_time(i)
  end
  return is_live and live or only(live, has_time)
end
