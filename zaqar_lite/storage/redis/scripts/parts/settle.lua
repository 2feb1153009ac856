-- Bring the queue up to now: end what has lapsed, make ready what is due. Answers 'again' when
-- that alone used up this call; the driver repeats it.
-- include: claims delays
local examined, settled, promoted = 0, false, 0
examined, settled = lapse(500)
promoted = promote(450)
examined = examined + promoted
if not settled or promoted == 450 then
  return {'again', now, examined}
end
