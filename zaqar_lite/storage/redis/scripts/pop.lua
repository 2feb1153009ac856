-- Remove and hand out ready messages.
-- ARGV: 1 offset, 2 version; the others: take
-- Answers: status, now, examined, moved, instant to register; of each: see take.
-- include: whole version take
local status, taken, moved = take()
local histories = histories_of(taken)
forget(taken.positions, taken.tracks)
return hand_out({status, now, spent + #taken.positions, moved, first_return and schedule(first_return) or 0},
  taken, histories)
