-- Append a message to an answer: position, record, track, attempts ('' where none are wanted).
-- include: tracks
local function show(answer, position, record, track, details)
  local history = ''
  if details == '1' and track and has_flag(track, REMEMBERED) then
    history = redis.call('HGET', attempts, position) or ''
  end
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = position, record, track or '', history
end
