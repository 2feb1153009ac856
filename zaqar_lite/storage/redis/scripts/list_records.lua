-- List live records in order. Stop at the limit, after 1,000 examined entries or at two mebibytes.
-- ARGV: 1 offset, 2 low and 3 high ends as ZRANGEBYLEX takes them, 4 limit
-- Answers: the last field examined or '', '1' at the end; field and record of each.
-- include: kind
local low, limit, examined, bytes = ARGV[2], tonumber(ARGV[4]), 0, 0
local answer, shown = {'', ''}, 0
while shown < limit and examined < 1000 and bytes < 2097152 do
  local count = math.min(limit - shown, 32)
  local found = redis.call('ZRANGEBYLEX', fields, low, ARGV[3], 'LIMIT', 0, count)
  for i, record in ipairs(#found > 0 and redis.call('HMGET', values, unpack(found)) or {}) do
    if is_live(record) then
      shown = shown + 1
      bytes = bytes + #record
      answer[2 * shown + 1], answer[2 * shown + 2] = found[i], record
    end
  end
  examined = examined + #found
  if #found < count then
    answer[2] = '1'
    break
  end
  answer[1] = found[#found]
  low = '(' .. answer[1]
end
return answer
