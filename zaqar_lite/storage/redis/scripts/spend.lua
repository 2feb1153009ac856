-- Take tokens from buckets of a project, which hold some seconds' worth and may go into debt.
-- ARGV: 1 offset, 2 seconds, then for each bucket: name, tokens a second, tokens spent
-- Answers: 'ok', and what each bucket has left.
-- key rates: hash, bucket -> tokens and instant (ms); expires once all are full
-- include: now
local answer, full = {'ok'}, now
for i = 3, #ARGV, 3 do
  local rate = tonumber(ARGV[i + 1])
  local most = math.max(rate * tonumber(ARGV[2]), 1)
  local left = most
  local stored = redis.call('HGET', rates, ARGV[i])
  if stored then
    local tokens, at = string.match(stored, '(%S+) (%S+)')
    left = math.min(most, tonumber(tokens) + math.max(now - tonumber(at), 0) / 1000 * rate)
  end
  left = left - tonumber(ARGV[i + 2])
  redis.call('HSET', rates, ARGV[i], string.format('%.3f %.0f', left, now))
  full = math.max(full, now + (most - left) / rate * 1000)
  answer[#answer + 1] = string.format('%.3f', left)
end
redis.call('PEXPIREAT', rates, string.format('%.0f', full - offset + 60000))
return answer
