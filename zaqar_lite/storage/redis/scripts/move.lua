-- Move messages that nobody holds to another queue, by way of the outbox.
-- ARGV: 1 offset, 3 delay (ms), 4 '1' to set their counts to 0; 5 to 12: policy, of which only the
--       target, the ttl and the source's name are used; 13.. ids (16 bytes each)
-- Answers: 'ok', now, a letter for each of the first ids, as many as one call may move: D done,
-- N not found, H held; then the messages, if nothing else is in the outbox. Or 'arm' and now:
-- nothing was done, and the driver must first register the queue for the sweep.
-- include: whole claims delays forget locate failing
local delay = tonumber(ARGV[3])
if not is_armed then
  arm()
  return {'arm', now}
end
local wanted = arguments_from(13)
local live, places = locate_live(wanted), {}
for i, id in ipairs(live.ids) do
  places[id] = i
end

local function track_of(i)
  local record = live.records[i]
  local expires, ttl = struct.unpack('>I6I5', record, 7)
  return live.tracks[i] or struct.pack('>I6I5I4', expires, ttl, 0) .. ('\0'):rep(16) .. '\128\0'
    .. ('\0'):rep(20)
end

local outcomes, rows, waiting_ones, bytes = {}, {}, {}, 0
for n, id in ipairs(wanted) do
  local i = places[id]
  local track = i and live.tracks[i]
  places[id] = nil
  if not i then
    outcomes[n] = 'N'
  elseif track and (has_flag(track, HELD) or has_flag(track, PARKED) and until_of(track) > now) then
    outcomes[n] = 'H'
  elseif bytes >= LETTER_BYTES then
    break
  else
    outcomes[n] = 'D'
    bytes = bytes + #live.records[i]
    rows[#rows + 1] = {position = live.positions[i], track = track_of(i), reason = 'moved',
      record = live.records[i],
      back = true, until_when = delay > 0 and now + delay or 0, resets = ARGV[4] == '1'}
    if struct.unpack('>I6', live.records[i], 18) > 0 then
      waiting_ones[#waiting_ones + 1] = live.positions[i]
    end
  end
end
leave_ready(column(rows, 'position'))
leave_held(column(rows, 'position')) -- a message whose wait is over may still be among the held
leave_delayed(waiting_ones)
local gone = {positions = {}, tracks = {}}
local letters = set_aside(rows, gone)
forget(gone.positions, gone.tracks)
return {'ok', now, table.concat(outcomes), unpack(letters)}
