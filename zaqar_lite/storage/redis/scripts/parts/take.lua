-- Take ready messages in order, for claim and pop.
-- ARGV: 3 claim id, 4 limit, 7 mode (I, H, E), 9 most claims ('' for no dead-letter queue),
--       10 the target's tag, 11 ttl of letters in ms ('' for what remains), 12 the source's name,
--       13 '1' when the driver has registered the queue for the sweep
-- key outbox: list, dead letters on their way; drained by outbox_ack, expires by `keep`
-- include: claims delays forget

-- The script answers with what it has when it has examined `BUDGET` entries that are not handed out
-- (expired, exhausted, brought back), or read `BYTES` of them: the next call and the sweep go on.
local BUDGET, BYTES = 250, 2097152
local limit, mode, most_claims = tonumber(ARGV[4]), ARGV[7], tonumber(ARGV[9])
local spent, is_settled = lapse(BUDGET / 2)
if mode == 'H' then
  local promoted, is_complete = promote(BUDGET / 2)
  spent, is_settled = spent + promoted, is_settled and is_complete
elseif mode == 'E' then
  expose(math.min(limit, BUDGET))
end

-- Put exhausted messages into the outbox: in this queue they are gone, in the target they will
-- be when the driver has drained it, under the ids they have.
local function set_aside(positions, records, its)
  local seq = take_positions(#positions)
  local latest = now + 60000
  for i, record in ipairs(records) do
    local track = its[i]
    local count = struct.unpack('>I4', track, 12)
    local origin_length = struct.unpack('>H', track, 32)
    local id = positions[i] .. record:sub(24, 31)
    if origin_length > 0 then
      id = track:sub(34, 49)
    end
    local expires, ttl = struct.unpack('>I6I5', track)
    if ARGV[11] ~= '' then
      ttl = tonumber(ARGV[11])
      expires = now + ttl
    end
    latest = math.max(latest, expires)
    local last = track:sub(34 + origin_length)
    local origin = id .. struct.pack('>I6I4', now, count) .. track:sub(16, 31)
      .. struct.pack('>B', #ARGV[12]) .. ARGV[12] .. last
    local letter_track = struct.pack('>I6I5I4', expires, ttl, count) .. track:sub(16, 31)
      .. struct.pack('>H', #origin) .. origin .. last
    redis.call('RPUSH', outbox, struct.pack('>I8H', seq + i - 1, #ARGV[10]) .. ARGV[10]
      .. struct.pack('>H', #letter_track) .. letter_track .. record)
  end
  keep(latest, {outbox})
  leave_ready(positions)
  forget(positions, its)
end

-- The rows (position, record, track) of these that can be handed out, up to `room`, and those that
-- are gone or exhausted on the way; how many bytes the exhausted have; whether one came unarmed.
local function sort(positions, room)
  local records, its = gather(messages, positions), gather(tracks, positions)
  local fit, gone, letters, bytes = {}, {}, {}, 0
  for i, position in ipairs(positions) do
    local record, track = records[i], its[i]
    local row = {position, record, track}
    if not record or expires_of(record, track) <= now then
      gone[#gone + 1] = row
    elseif most_claims and track and struct.unpack('>I4', track, 12) >= most_claims then
      if ARGV[13] ~= '1' then
        return fit, gone, letters, bytes, true
      end
      letters[#letters + 1] = row
      bytes = bytes + #record
    elseif #fit == room then
      break
    else
      fit[#fit + 1] = row
    end
  end
  return fit, gone, letters, bytes, false
end

local function column(rows, number)
  local values = {}
  for i, row in ipairs(rows) do
    values[i] = row[number]
  end
  return values
end

-- Answers status and the rows that were taken, and how many were moved. 'more': the budget ended
-- it. 'arm': an exhausted message is next, and the driver must register the queue for the sweep
-- before one is in its outbox; the sweep must not forget the queue before this call comes back, so
-- that a crash in between loses nothing.
local function take()
  local taken, moved, unfit, bytes, status = {}, 0, 0, 0, 'ok'
  while #taken < limit and status == 'ok' do
    local room = math.min(limit - #taken, 1000 - spent)
    -- While nothing fits, twice as many are looked at each time.
    local positions = first_ready(math.max(room, math.min(unfit, 64)))
    local fit, gone, letters, size, is_unarmed = sort(positions, room)
    for _, row in ipairs(fit) do
      taken[#taken + 1] = row
    end
    leave_ready(column(fit, 1))
    leave_ready(column(gone, 1))
    forget(column(gone, 1), column(gone, 3))
    if #letters > 0 then
      set_aside(column(letters, 1), column(letters, 2), column(letters, 3))
    end
    moved = moved + #letters
    unfit = unfit + #gone + #letters
    spent = spent + #gone + #letters
    bytes = bytes + size
    if is_unarmed then
      redis.call('HSET', state, 'armed', now + 60000)
      keep(now + 60000, {})
      status = 'arm'
    elseif #positions == 0 then
      local exposed = mode == 'E' and expose(math.min(room, BUDGET)) or 0
      spent = spent + exposed
      if exposed == 0 then
        break
      end
    end
    if status == 'ok' and #taken < limit and (spent >= BUDGET or bytes >= BYTES) then
      status = 'more'
    end
  end
  if status == 'ok' and #taken < limit and not is_settled then
    status = 'more'
  end
  return status, taken, moved
end
