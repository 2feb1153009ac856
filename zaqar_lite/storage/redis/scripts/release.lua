-- End a claim. The messages that it still holds are ready at once, or parked for the delay.
-- ARGV: 1 offset, 2 claim id, 3 delay (ms)
-- Answers: 'ok' and the instant to register.
-- include: attempts parked
local id, delay = ARGV[2], tonumber(ARGV[3])
local claim = redis.call('HGET', claims, id)
if not claim then
  return {'ok', 0}
end
local positions, its = held_by(id, claim)
local rows, over, soonest = {}, {}, nil
local way = {outcome = RELEASED, at = now, wait = delay, texts = NO_TEXTS}
for i, position in ipairs(positions) do
  local until_when = until_of(its[i])
  if until_when > now then
    rows[#rows + 1] = {position = position, track = its[i], ending = ending_of(its[i]:sub(12), way)}
  else
    over[#over + 1] = position
    soonest = math.min(soonest or until_when, until_when)
  end
end
end_attempts(rows)
give_back(rows, held, {})
reduce_claim(id, claim, over, soonest)
return {'ok', first_return and schedule(first_return) or 0}
