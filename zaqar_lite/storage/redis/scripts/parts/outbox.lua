-- Dead letters on their way.
-- key outbox: list, dead letters on their way; drained by outbox_ack, expires by `keep`
-- key attempts: hash, position -> hand-outs that have ended; expires by `keep`
-- include: policy tracks forget

local function column(rows, name)
  local values = {}
  for i, row in ipairs(rows) do
    values[i] = row[name]
  end
  return values
end

-- Put messages into the outbox: rows of position, track and reason. In this queue they are gone, in
-- the target they will be when the driver has drained it, under the ids they have. They must have
-- left the index of their state.
local function set_aside(rows)
  if #rows == 0 then
    return
  end
  local positions = column(rows, 'position')
  local histories = gather(attempts, positions)
  local seq, latest = take_positions(#rows), now + 60000
  for i, row in ipairs(rows) do
    local record, track = redis.call('HGET', messages, row.position), row.track
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
    local origin = id .. struct.pack('>I6I4', now, count) .. track:sub(16, 31)
      .. struct.pack('>B', #source_name) .. source_name .. last .. row.reason
    local flags = bit.band(track:byte(34), REMEMBERED + 7)
    local letter = struct.pack('>I6I5I4', expires, ttl, count) .. track:sub(16, 31)
      .. struct.pack('>HBI6', 32768 + #origin, flags, 0) .. track:sub(41, 50) .. origin .. last
    local history = histories[i] or ''
    redis.call('RPUSH', outbox, struct.pack('>I8H', seq + i - 1, #target) .. target
      .. struct.pack('>H', #letter) .. letter .. struct.pack('>I4', #history) .. history .. record)
  end
  keep(latest, {outbox})
  forget(positions, column(rows, 'track'))
end
