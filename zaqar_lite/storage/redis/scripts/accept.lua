-- Store dead letters in their target queue. A letter is stored once, even if the call is repeated.
-- ARGV: 1 offset, 2 tag of the source, 3.. letters: sequence number (8 bytes), length of the
--       track (2 bytes), track, length of the attempts (4 bytes), attempts, record
-- Answers: 'ok', instant to register.
-- include: whole ready delays tracks groups

-- The track, attempts and record of a letter.
local function read_letter(letter)
  local length = struct.unpack('>H', letter, 9)
  local track, rest = letter:sub(11, 10 + length), 11 + length
  local size = struct.unpack('>I4', letter, rest)
  return track, letter:sub(rest + 4, rest + 3 + size), letter:sub(rest + 4 + size)
end

-- A source sends its letters in the order of their numbers. So a letter is a repeat unless its
-- number is above that of the last letter that was stored.
local came = tonumber(redis.call('HGET', inbox, ARGV[2]) or 0)
local fresh, latest, soonest = {}, now, 0
for i = 3, #ARGV do
  local seq = struct.unpack('>I8', ARGV[i])
  if seq > came then
    came = seq
    local track, history, record = read_letter(ARGV[i])
    local expires = struct.unpack('>I6', track)
    if expires > now then
      fresh[#fresh + 1] = {track, record, expires, history}
      latest = math.max(latest, expires)
      soonest = soonest == 0 and expires or math.min(soonest, expires)
    end
  end
end
redis.call('HSET', inbox, ARGV[2], string.format('%.0f', came))
keep(now + 86400000, {inbox})
if #fresh == 0 then
  return {'ok', 0}
end
local first = take_positions(#fresh)
local positions, priorities, late, ends = {}, {}, {}, {}
local records, its, deadlines, named, histories = {}, {}, {}, {}, {}
local grouped, members = {}, {}
for i, letter in ipairs(fresh) do
  local position, track = struct.pack('>I8', first + i - 1), letter[1]
  if has_flag(track, WAITS) then
    letter[1] = track:sub(1, 33) .. string.char(track:byte(34) - WAITS) .. track:sub(35)
    late[#late + 1], ends[#ends + 1] = position, (struct.unpack('>I6', letter[2], 18))
    soonest = math.min(soonest, ends[#ends])
  else
    positions[#positions + 1], priorities[#priorities + 1] = position, priority_of(letter[2])
  end
  local at = 2 * i
  records[at - 1], records[at] = position, letter[2]
  if is_grouped(letter[2]) then
    grouped[#grouped + 1], members[#members + 1] = position, letter[2]
  end
  its[at - 1], its[at] = position, letter[1]
  deadlines[at - 1], deadlines[at] = score_of(letter[3]), position
  named[at - 1], named[at] = letter[1]:sub(51, 66), position
  if letter[4] ~= '' then
    histories[#histories + 1] = position
    histories[#histories + 1] = letter[4]
  end
end
apply('HSET', messages, records)
apply('HSET', tracks, its)
apply('ZADD', expiry, deadlines)
apply('HSET', ids, named)
apply('HSET', attempts, histories)
keep(latest, {messages, tracks, expiry, ids, attempts})
if #grouped > 0 then
  join_groups(grouped, members)
end
if #positions > 0 then
  enter_ready(positions, priorities)
end
if #late > 0 then
  add_to(due, late, ends)
  add_to(waiting, late)
  keep(latest, {due, waiting})
  hasten(math.min(unpack(ends)))
end
return {'ok', schedule(soonest)}
