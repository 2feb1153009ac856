-- Dead letters on their way.
-- key outbox: list, letters and companions on their way; drained by outbox_ack, expires by `keep`
-- key attempts: hash, position -> hand-outs that have ended; expires by `keep`
-- include: policy tracks forget

local function column(rows, name)
  local values = {}
  for i, row in ipairs(rows) do
    values[i] = row[name]
  end
  return values
end

-- The origin of a letter of this id. One that is put `back` keeps what it had, and is counted.
local function origin_of(row, id, count, last)
  local track, length, redriven = row.track, origin_length(row.track), 0
  if length > 0 then
    redriven = track:byte(73)
  end
  if row.back then
    redriven = math.min(redriven + 1, 255)
    if length > 0 and track:byte(93) > 0 then -- else it came from another store, and from no queue
      return track:sub(51, 72) .. string.char(redriven) .. track:sub(74, 50 + length)
    end
  end
  return id .. struct.pack('>I6I4', now, redriven * 16777216 + math.min(count, 16777215))
    .. track:sub(16, 31) .. struct.pack('>B', #source_name) .. source_name .. last .. row.reason
end

-- The histories of rows whose hand-out has not ended now.
local function histories_by(rows)
  local positions, found = {}, {}
  for _, row in ipairs(rows) do
    if not row.history and has_flag(row.track, REMEMBERED) then
      positions[#positions + 1] = row.position
    end
  end
  for i, history in ipairs(gather(attempts, positions)) do
    found[positions[i]] = history
  end
  return found
end

-- Put messages into the outbox: rows of position, track, reason and perhaps the record; those whose
-- hand-out ends now also have their history, and the track that is stored; those that are put `back`
-- say until when they are delayed, and whether their counts begin anew. In this queue they are gone, in
-- the target they will be when the driver has drained it, under the ids they have. They must have
-- left the index of their state. Answers the letters where the outbox was empty and they are few: who has
-- them need not read them.
local function set_aside(rows)
  if #rows == 0 then
    return {}
  end
  local positions, histories, stored = column(rows, 'position'), histories_by(rows), {}
  local seq, latest = take_positions(#rows), now + 60000
  local letters, bytes = {}, 0
  for i, row in ipairs(rows) do
    local record, track = row.record or redis.call('HGET', messages, row.position), row.track
    stored[i] = row.stored or track
    local length = origin_length(track)
    local id = row.position .. record:sub(24, 31)
    if length > 0 then
      id = track:sub(51, 66)
    end
    local expires, ttl, count = struct.unpack('>I6I5I4', track)
    if letter_ttl then
      ttl = letter_ttl
      expires = now + ttl
    end
    latest = math.max(latest, expires)
    local last = track:sub(51 + length)
    local origin = origin_of(row, id, count, last)
    local flags, begun = bit.band(track:byte(34), REMEMBERED + 7), track:sub(41, 50)
    if row.back then
      record = record:sub(1, 17) .. struct.pack('>I6', row.until_when) .. record:sub(24)
      flags = flags + (row.until_when > 0 and WAITS or 0)
    end
    if row.resets then
      count, begun = 0, track:sub(41, 46) .. '\0\0\0\0'
    end
    local letter = struct.pack('>I6I5I4', expires, ttl, count) .. track:sub(16, 31)
      .. struct.pack('>HBI6', 32768 + #origin, flags, 0) .. begun .. origin .. last
    local history = row.history or histories[row.position] or ''
    letters[i] = struct.pack('>I8H', seq + i - 1, #target) .. target
      .. struct.pack('>H', #letter) .. letter .. struct.pack('>I4', #history) .. history .. record
    bytes = bytes + #letters[i]
  end
  apply('RPUSH', outbox, letters)
  keep(latest, {outbox})
  forget(positions, stored)
  local is_alone = #letters <= 100 and bytes < 1048576 and redis.call('LLEN', outbox) == #letters
  return is_alone and letters or {}
end
