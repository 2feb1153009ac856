-- Let the sweep visit a queue at an instant. The score changes in any case, so that a sweep that has looked
-- at the queue before notices (see reschedule).
local function note_visit(tag, at)
  local old = redis.call('ZSCORE', visits, tag)
  if old then
    at = math.min(at, tonumber(old) - 1)
  end
  redis.call('ZADD', visits, at, tag)
end
