-- Look up idempotency keys.
-- ARGV: 1 offset, 2.. fields of `keys`
-- Answers: 'ok', whether the queue remembers any key (1 or 0), and for each field its entry, or ''
-- if it is not remembered.
-- include: whole chunks
local last = redis.call('ZRANGE', forgets, -1, -1, 'WITHSCORES')[2]
local answer = {'ok', last and tonumber(last) > now and 1 or 0}
for i, entry in ipairs(gather(keys, arguments_from(2))) do
  answer[2 + i] = entry and struct.unpack('>I6', entry) > now and entry or ''
end
return answer
