-- Remove expired records of a kind, and find when it must be visited next.
-- ARGV: 1 offset, 2 how many at most
-- Answers: how many, next instant or 0.
-- include: kind
local found = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, math.min(tonumber(ARGV[2]), 500))
for _, field in ipairs(found) do
  remove(field)
end
local following = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')[2]
if following then
  redis.call('HSET', counters, 'due', following)
else
  redis.call('HDEL', counters, 'due')
end
return {#found, tonumber(following or 0)}
