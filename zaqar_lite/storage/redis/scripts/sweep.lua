-- Tidy up one queue, and find when it must be visited next.
-- ARGV: 1 offset, 4 about how many entries; 5 to 12: policy
-- Answers: 'ok', or 'arm' if the driver must register the queue and call again; how many messages
-- expired, keys ended, messages were promoted and lapsed; length of the outbox, next instant or 0, now.
-- registers nothing: the queue stays registered until this visit is over
-- include: whole expire failing
local budget = math.min(tonumber(ARGV[4]), 100)
local expired, noticed, promoted = expire(budget), 0, 0
if expired < budget then
  noticed = lapse(budget - expired)
end
local ended, _, moved, is_unarmed = end_lapsed(budget)
if expired + noticed < budget then
  promoted = promote(budget - expired - noticed) + unpark(budget - expired - noticed)
end
local old = redis.call('ZRANGEBYSCORE', forgets, '-inf', now, 'LIMIT', 0, budget)
apply('ZREM', forgets, old)
apply('HDEL', keys, old)
local following = 0
local function consider(instant)
  instant = tonumber(instant or 0)
  if instant > 0 and (following == 0 or instant < following) then
    following = instant
  end
end
for _, key in ipairs({expiry, leases, due, parked, forgets}) do
  consider(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end
local armed = tonumber(redis.call('HGET', state, 'armed') or 0)
if armed > now then
  consider(armed)
end
if redis.call('EXISTS', lapsed) == 1 then
  consider(now)
end
local waiting_letters = redis.call('LLEN', outbox)
if waiting_letters > 0 then
  consider(now + 5000)
end
if following > 0 then
  redis.call('HSET', state, 'due', following)
  keep(following, {})
else
  redis.call('HDEL', state, 'due')
end
return {is_unarmed and 'arm' or 'ok', expired, #old, promoted, ended - moved, waiting_letters, following, now}
