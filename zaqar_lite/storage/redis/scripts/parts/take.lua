-- Take ready messages in order, for claim and pop.
-- ARGV: 3 claim id, 4 limit, 7 mode (I, H, E), 9 most claims ('' for no dead-letter queue),
--       10 the target's tag, 11 ttl of letters in ms ('' for what remains), 12 the source's name,
--       13 '1' when the driver has registered the queue for the sweep
-- key outbox: list, dead letters on their way; drained by outbox_ack, expires by `keep`
-- include: claims delays forget
local BUDGET = 900
local limit, mode, most_claims = tonumber(ARGV[4]), ARGV[7], tonumber(ARGV[9])
local examined, settled = lapse(400)
if settled and mode == 'H' then
  local promoted, complete = promote(400)
  examined, settled = examined + promoted, complete
end
if not settled then
  return {'again', now, examined, 0, 0}
end
if mode == 'E' then
  examined = examined + expose(math.min(limit, 400))
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

-- Answers status, positions, records and tracks of what was taken, and how many were moved.
local function take()
  local taken, records, its, moved, status = {}, {}, {}, 0, 'ok'
  while #taken < limit and status == 'ok' do
    local room = math.min(limit - #taken, BUDGET - examined)
    if room <= 0 then
      status = 'again'
      break
    end
    local positions = first_ready(room)
    local gone, gone_tracks, letters, letter_records, letter_tracks, leaving = {}, {}, {}, {}, {}, {}
    local found = gather(messages, positions)
    local found_tracks = gather(tracks, positions)
    for i, position in ipairs(positions) do
      local record, track = found[i], found_tracks[i]
      examined = examined + 1
      if not record or expires_of(record, track) <= now then
        gone[#gone + 1], gone_tracks[#gone + 1] = position, track
      elseif most_claims and track and struct.unpack('>I4', track, 12) >= most_claims then
        if ARGV[13] ~= '1' then
          -- The sweep must know of this queue before anything is in its outbox, and must not
          -- forget it before this claim comes back: a crash in between loses nothing.
          redis.call('HSET', state, 'armed', now + 60000)
          keep(now + 60000, {})
          status = 'arm'
          break
        end
        letters[#letters + 1], letter_records[#letters + 1], letter_tracks[#letters + 1] =
          position, record, track
      else
        leaving[#leaving + 1] = position
        taken[#taken + 1], records[#taken + 1], its[#taken + 1] = position, record, track
      end
    end
    leave_ready(leaving)
    if #gone > 0 then
      leave_ready(gone)
      forget(gone, gone_tracks)
    end
    if #letters > 0 then
      set_aside(letters, letter_records, letter_tracks)
      moved = moved + #letters
    end
    if #positions == 0 then
      local exposed = mode == 'E' and expose(room) or 0
      examined = examined + exposed
      if exposed == 0 then
        break
      end
    end
  end
  return status, taken, records, its, moved
end
