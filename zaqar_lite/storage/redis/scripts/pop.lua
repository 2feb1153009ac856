-- Remove and hand out ready messages.
-- ARGV: 1 offset, 2 version; the others: take
-- Answers: status, now, examined, moved, 0; position, record, track of each.
-- include: version take
local status, taken, records, its, moved = take()
forget(taken, its)
local answer = {status, now, examined, moved, 0}
for i, position in ipairs(taken) do
  local at = 3 * i + 3
  answer[at], answer[at + 1], answer[at + 2] = position, records[i], its[i] or ''
end
return answer
