-- Dead letters on their way.
-- include: policy tracks forget attempts

local function column(rows, name)
  local values = {}
  for i, row in ipairs(rows) do
    values[i] = row[name]
  end
  return values
end

-- A letter but for its number, when it expires, its id, its history and its record: the target and the size
-- of its track, the track before the id, and what is behind it. One that is put `back` keeps the origin it
-- had, and is counted. As with attempts, what is alike in many rows is made once.
local middles = {}
local function middle_of(row)
  local key = row.ending or row.track:sub(12) .. row.reason
  local middle = middles[key]
  if not middle then
    local track, reason = row.track, row.reason
    if row.ending then
      track, reason = ended_track(row), row.ending.reason
    end
    local length, redriven = origin_length(track), 0
    local last, begun = track:sub(51 + length), row.resets and track:sub(41, 46) .. '\0\0\0\0' or track:sub(41, 50)
    local flags = bit.band(track:byte(34), REMEMBERED + 7)
    if row.back then
      flags = flags + (row.until_when > 0 and WAITS or 0)
    end
    if length > 0 then
      redriven = track:byte(73)
    end
    local origin
    if row.back then
      redriven = math.min(redriven + 1, 255)
      if length > 0 and track:byte(93) > 0 then -- else it came from another store, and from no queue
        origin = track:sub(67, 72) .. string.char(redriven) .. track:sub(74, 50 + length)
      end
    end
    if not origin then
      local count = math.min(struct.unpack('>I4', track, 12), 16777215)
      origin = struct.pack('>I6I4', now, redriven * 16777216 + count) .. track:sub(16, 31)
        .. struct.pack('>B', #source_name) .. source_name .. last .. reason
    end
    local before = (row.resets and '\0\0\0\0' or track:sub(12, 15)) .. track:sub(16, 31)
      .. struct.pack('>HBI6', 32784 + #origin, flags, 0) .. begun
    middle = {before = before, behind = origin .. last, has_id = length > 0}
    middle.head = struct.pack('>H', #target) .. target .. struct.pack('>H', 27 + #before + #middle.behind)
    middles[key] = middle
  end
  return middle
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

-- Note what is in a queue no more, for `forget`; false stands for no track.
local function leave(gone, position, track)
  local at = #gone.positions + 1
  gone.positions[at], gone.tracks[at] = position, track
end

-- Put messages into the outbox: rows of position, track, reason and perhaps the record; those whose hand-out
-- ends now have its ending and their history instead of a reason; those that are put `back` say until
-- when they are delayed, and whether their counts begin anew. They are noted in `gone`, which the caller
-- takes out of the queue; in the target they will be when the driver has drained the outbox, under the ids
-- they have. Answers the letters where the outbox was empty and they are few: who has them need not read
-- them.
local function set_aside(rows, gone)
  if #rows == 0 then
    return {}
  end
  local histories = histories_by(rows)
  local seq, latest = take_positions(#rows), now + 60000
  local letters, bytes, start = {}, 0, letter_ttl and struct.pack('>I6I5', now + letter_ttl, letter_ttl)
  for i, row in ipairs(rows) do
    local record = row.record or redis.call('HGET', messages, row.position)
    local track, middle = row.track, middle_of(row)
    leave(gone, row.position, track)
    local id = middle.has_id and track:sub(51, 66) or row.position .. record:sub(24, 31)
    local lifetime = start or track:sub(1, 11)
    latest = math.max(latest, (struct.unpack('>I6', lifetime)))
    if row.back then
      record = record:sub(1, 17) .. struct.pack('>I6', row.until_when) .. record:sub(24)
    end
    local history = row.history or histories[row.position] or ''
    letters[i] = struct.pack('>I8', seq + i - 1) .. middle.head .. lifetime .. middle.before .. id
      .. middle.behind .. struct.pack('>I4', #history) .. history .. record
    bytes = bytes + #letters[i]
  end
  local length = apply('RPUSH', outbox, letters)
  keep(latest, {outbox})
  look_after_outbox()
  return length == #letters and length <= 250 and bytes < 1048576 and letters or {}
end
