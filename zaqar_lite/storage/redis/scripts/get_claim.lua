-- Read a live claim and the live messages it holds, in order of position.
-- ARGV: 1 offset, 2 claim id
-- Answers: 'ok', now, ttl, start; position, record, track, '1', of each; or 'missing', also when it holds nothing.
-- include: claims forget
local deadline = redis.call('ZSCORE', leases, ARGV[2])
local claim = redis.call('HGET', claims, ARGV[2])
if not claim or not deadline or tonumber(deadline) <= now then
  return {'missing'}
end
local ttl, start = struct.unpack('>I5I6', claim)
local answer = {'ok', now, ttl, start}
local positions, its = held_by(ARGV[2], claim)
local records = gather(messages, positions)
local order = {}
for i, position in ipairs(positions) do
  order[i] = {struct.unpack('>I8', position), i}
end
table.sort(order, function(a, b) return a[1] < b[1] end)
for _, pair in ipairs(order) do
  local i = pair[2]
  if records[i] and expires_of(records[i], its[i]) > now then
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] =
      positions[i], records[i], its[i], '1'
  end
end
return #answer > 4 and answer or {'missing'}
