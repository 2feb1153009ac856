-- Fetch live messages by id.
-- ARGV: 1 offset, 2 '1' for attempts too, 3.. ids (16 bytes each)
-- Answers: 'ok', now; then what `show` gives for each message that was found.
-- include: whole forget locate show
local answer = {'ok', now}
local found = locate_live(arguments_from(3))
for i, position in ipairs(found.positions) do
  show(answer, position, found.records[i], found.tracks[i], ARGV[2])
end
return answer
