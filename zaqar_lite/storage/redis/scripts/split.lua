-- Cut the live messages into ranges of about equal size. The cuts are estimated from samples of each
-- index.
-- ARGV: 1 offset, 2 most ranges
-- Answers: 'ok', now, total; then the last position of each range.
-- include: whole census
local most, total = tonumber(ARGV[2]), 0
local sizes = {}
for i, source in ipairs(sources) do
  sizes[i] = redis.call('ZCARD', source)
  total = total + sizes[i]
end
local answer = {'ok', now, total}
if total == 0 then
  return answer
end
-- Each sample stands for `step` messages. Up to 900 messages, all of them are read.
local step = math.max(1, math.ceil(total / 900))
local samples = {}
for i, source in ipairs(sources) do
  local rank = math.min(step, sizes[i]) - 1
  local before = -1
  while rank > before do
    local position = redis.call('ZRANGE', source, rank, rank)[1]
    samples[#samples + 1] = {struct.unpack('>I8', position), rank - before}
    before = rank
    rank = math.min(rank + step, sizes[i] - 1)
  end
end
table.sort(samples, function(a, b) return a[1] < b[1] end)
local ranges, seen = math.min(most, total), 0
for i, sample in ipairs(samples) do
  seen = seen + sample[2]
  if i == #samples or seen >= math.floor(total * (#answer - 2) / ranges) then
    answer[#answer + 1] = struct.pack('>I8', sample[1])
  end
end
return answer
