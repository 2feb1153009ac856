-- Make delayed messages ready before their delay has ended. Expired ones are removed first.
-- ARGV: 1 offset, 2 version, 3 how many at most (500)
-- Answers: 'ok', and how many.
-- include: whole version expire
if expire(400) == 400 then
  return {'again', now, 400}
end
return {'ok', release_delayed(tonumber(ARGV[3]))}
