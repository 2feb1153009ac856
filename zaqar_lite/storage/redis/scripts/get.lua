-- Fetch live messages by id.
-- ARGV: 1 offset, 2.. ids (16 bytes each)
-- Answers: 'ok', now; position, record, track, '1' if held, of each that is there.
-- include: claims forget locate
local answer = {'ok', now}
local found = locate_live(arguments_from(2))
for i, position in ipairs(found.positions) do
  local track, at = found.tracks[i], #answer
  answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] =
    position, found.records[i], track or '', is_held(track) and '1' or ''
end
return answer
