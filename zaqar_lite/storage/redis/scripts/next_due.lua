-- Tell when something next becomes ready by time.
-- ARGV: 1 offset
-- Answers: milliseconds until then, -1 when nothing waits.
-- include: keys now
if redis.call('EXISTS', lapsed) == 1 then
  return {0}
end
local first = -1
for _, key in ipairs({leases, due, parked}) do
  local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
  if score then
    local left = math.max(0, score - now)
    first = first < 0 and left or math.min(first, left)
  end
end
return {first}
