-- List live messages by position.
-- ARGV: 1 offset, 2 version, 3 marker (position or ''), 4 its id or '', 5 until (position or ''),
--       6 its id or '', 7 limit, 8 client to leave out or '', 9 'c' and 'd': claimed, delayed too,
--       10 '1' for attempts too, 11 length of a group (1 byte) and group, or ''
-- Answers: 'ok', now, examined, position of the last entry examined or '', '1' at the end;
-- of each: see show.
-- include: whole version current forget locate groups show
local function resolve(position, id)
  return id ~= '' and locate({id})[1] or position
end
local after = resolve(ARGV[3], ARGV[4])
local last = resolve(ARGV[5], ARGV[6])
local limit, group = tonumber(ARGV[7]), ARGV[11]
local low, high = after == '' and '-' or '(' .. group .. after, last == '' and '+' or '[' .. group .. last
local sources = {ready}
if life[4] then
  sources[#sources + 1] = aside
end
if life[5] then
  sources[#sources + 1] = lapsed
end
if ARGV[9]:find('d') then
  sources[#sources + 1] = waiting
end
if ARGV[9]:find('c') then
  sources[#sources + 1] = held
end
if group ~= '' then
  sources = {groups}
  low = after == '' and '[' .. group or low
  high = last == '' and '(' .. group .. ('\255'):rep(9) or high
end

-- Whether a message of a group, which may be in any state, is in one that is wanted.
local function is_wanted(position, track)
  return group == '' or (ARGV[9]:find('d') or not redis.call('ZSCORE', waiting, position))
    and (ARGV[9]:find('c') or not (track and bit.band(track:byte(34), HELD + PARKED) > 0 and until_of(track) > now))
end

-- The next `count` positions over all sources, in order (by number: Lua compares strings by
-- locale).
local function following(count)
  local found, numbers = {}, {}
  for _, source in ipairs(sources) do
    for _, position in ipairs(redis.call('ZRANGEBYLEX', source, low, high, 'LIMIT', 0, count)) do
      found[#found + 1] = position:sub(-8)
    end
  end
  if #sources > 1 then
    for i, position in ipairs(found) do
      numbers[i] = struct.unpack('>I8', position)
    end
    table.sort(numbers)
    found = {}
    for i = 1, math.min(count, #numbers) do
      found[i] = struct.pack('>I8', numbers[i])
    end
  end
  return found
end

-- The script answers with what it has when it has examined this many, about 2 ms: the driver goes on.
local budget = math.max(limit, 250)
local answer = {'ok', now, 0, '', ''}
local shown = 0
examined = 0
while shown < limit and examined < budget do
  local count = math.min(limit, budget - examined)
  local positions = following(count)
  local records = gather(messages, positions)
  local its = tracks_of(positions)
  for i, position in ipairs(positions) do
    local record, track = records[i], its[i]
    examined = examined + 1
    answer[4] = position
    if record and expires_of(record, track) > now
        and (ARGV[8] == '' or record:sub(35, 34 + #ARGV[8]) ~= ARGV[8]) and is_wanted(position, track) then
      show(answer, position, record, track, ARGV[10])
      shown = shown + 1
      if shown == limit then
        break
      end
    end
  end
  if #positions < count and shown < limit then
    answer[5] = '1'
    break
  end
  low = '(' .. group .. answer[4]
end
answer[3] = examined
return answer
