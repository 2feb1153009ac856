-- Tell when something next becomes ready by time.
-- ARGV: 1 offset
-- Answers: milliseconds until then, -1 when nothing waits.
-- key leases: zset, claim id; no lease of its messages ends before the score; expires by `keep`
-- key due: zset, positions by d (ms); expires by `keep`
-- key parked: zset, positions by the end of their wait (ms); expires by `keep`
-- key lapsed: zset, score 0, positions whose lease has lapsed and is not ended yet; expires by `keep`
-- include: now
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
