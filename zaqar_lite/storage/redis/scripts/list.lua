-- List live messages by position.
-- ARGV: 1 offset, 2 version, 3 marker (position or ''), 4 its id or '', 5 until (position or ''),
--       6 its id or '', 7 limit, 8 client to leave out or '', 9 'c' and 'd': claimed, delayed too,
--       10 '1' for attempts too
-- Answers: 'ok', now, examined, position of the last entry examined or '', '1' at the end;
-- of each: see show.
-- include: whole version current forget locate show
local function resolve(position, id)
  return id ~= '' and locate({id})[1] or position
end
local after = resolve(ARGV[3], ARGV[4])
local last = resolve(ARGV[5], ARGV[6])
local limit = tonumber(ARGV[7])
local low, high = after == '' and '-' or '(' .. after, last == '' and '+' or '[' .. last
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

-- The next `count` positions over all sources, in order (by number: Lua compares strings by
-- locale).
local function following(count)
  local found, numbers = {}, {}
  for _, source in ipairs(sources) do
    for _, position in ipairs(redis.call('ZRANGEBYLEX', source, low, high, 'LIMIT', 0, count)) do
      found[#found + 1] = position
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
        and (ARGV[8] == '' or record:sub(35, 34 + #ARGV[8]) ~= ARGV[8]) then
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
  low = '(' .. answer[4]
end
answer[3] = examined
return answer
