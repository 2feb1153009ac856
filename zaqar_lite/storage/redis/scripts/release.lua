-- End a claim; what it still holds is ready at once.
-- ARGV: 1 offset, 2 claim id
-- include: claims
end_claim(ARGV[2])
return {'ok'}
