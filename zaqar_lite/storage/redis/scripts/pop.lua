-- Remove and hand out ready messages.
-- ARGV: 1 offset, 2 version; the others: take
-- Answers: status, now, examined, moved, instant to register; of each: see take.
-- include: whole version take
local status, taken, moved = take()
local histories = histories_of(taken)
forget(column(taken, 1), column(taken, 3))
local at = first_return
if #taken == 0 and has_orphans() then
  at = now
end
return hand_out({status, now, spent + #taken, moved, at and schedule(at) or 0}, taken, histories)
