-- Read the first letters of the outbox, up to about 100 or a mebibyte.
-- Answers: the letters.
-- key outbox: list, letters and companions on their way; drained by outbox_ack, expires by `keep`
local letters, bytes = {}, 0
while #letters < 100 and bytes < 1048576 do
  local some = redis.call('LRANGE', outbox, #letters, #letters + 9)
  for _, letter in ipairs(some) do
    letters[#letters + 1] = letter
    bytes = bytes + #letter
  end
  if #some < 10 then
    break
  end
end
return letters
