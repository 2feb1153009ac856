-- Remove what has expired from a full queue.
-- ARGV: 1 offset
-- Answers: 'ok' and how many.
-- include: whole expire
return {'ok', expire(250)}
