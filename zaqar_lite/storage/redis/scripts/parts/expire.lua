-- Remove what has expired, whatever its state.
-- include: forget claims delays
local function expire(budget)
  local positions = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, budget)
  if #positions > 0 then
    local its = tracks_of(positions)
    leave_ready(positions)
    leave_delayed(positions)
    leave_held(positions)
    forget(positions, its)
  end
  return #positions
end
