-- Read a live claim and the live messages it holds, in order of position.
-- ARGV: 1 offset, 2 claim id, 3 '1' for attempts too
-- Answers: 'ok', now, ttl, start, then what `show` gives for each message; or 'missing', also for a
-- claim that holds nothing.
-- include: claims forget show
local claim = redis.call('HGET', claims, ARGV[2])
if not claim then
  return {'missing'}
end
local ttl, start = struct.unpack('>I5I6', claim)
local answer = {'ok', now, ttl, start}
local positions, its = held_by(ARGV[2], claim)
local records = gather(messages, positions)
local order = {}
for i, position in ipairs(positions) do
  if records[i] and is_held(its[i]) and expires_of(records[i], its[i]) > now then
    order[#order + 1] = {struct.unpack('>I8', position), i}
  end
end
table.sort(order, function(a, b) return a[1] < b[1] end)
for _, pair in ipairs(order) do
  local i = pair[2]
  show(answer, positions[i], records[i], its[i], ARGV[3])
end
return #answer > 4 and answer or {'missing'}
