-- Remove and hand out ready messages.
-- ARGV: 1 offset, 2 version; the others: take
-- Answers: status, now, examined, moved, instant to register; position, record, track of each.
-- include: version take
local status, taken, moved = take()
forget(column(taken, 1), column(taken, 3))
local answer = {status, now, spent + #taken, moved, 0}
if #taken == 0 then
  answer[5] = has_orphans() and schedule(now) or 0
end
for i, row in ipairs(taken) do
  local at = 3 * i + 3
  answer[at], answer[at + 1], answer[at + 2] = row[1], row[2], row[3] or ''
end
return answer
