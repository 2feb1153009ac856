-- Notice the leases that have lapsed, make ready what is due. Answers 'again' when that alone used up
-- this call; the driver repeats it.
-- include: delays parked
local examined, is_noticed = lapse(500)
local promoted, none_due = promote(225)
local returned, none_back = unpark(225)
examined = examined + promoted + returned
if not (is_noticed and none_due and none_back) then
  return {'again', now, examined}
end
