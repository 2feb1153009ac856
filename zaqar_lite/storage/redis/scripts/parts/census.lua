-- Bring the queue fully up to now, expiry too; answer 'again' when that used up this call.
-- include: expire parked
local expired = expire(300)
local noticed, none_left = lapse(300)
local promoted, none_due = promote(150)
local returned, none_back = unpark(150)
if expired == 300 or not (none_left and none_due and none_back) then
  return {'again', now, expired + noticed + promoted + returned}
end
local sources = {ready, aside, waiting, held, lapsed}
