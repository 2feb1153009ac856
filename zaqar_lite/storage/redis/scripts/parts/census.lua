-- Bring the queue fully up to now, expiry too; answer 'again' when that used up this call.
-- include: expire
local expired = expire(300)
local lapsed, none_left = lapse(300)
local promoted, none_due = promote(150)
if expired == 300 or not none_left or not none_due then
  return {'again', now, expired + lapsed + promoted}
end
local sources = {ready, aside, waiting, held}
