-- Read the first letters of the outbox, up to about 250 or a mebibyte.
-- Answers: the letters.
-- include: keys
local letters, bytes, step = {}, 0, 10
while #letters < 250 and bytes < 1048576 do
  local some = redis.call('LRANGE', outbox, #letters, #letters + step - 1)
  for _, letter in ipairs(some) do
    letters[#letters + 1] = letter
    bytes = bytes + #letter
  end
  if #some < step then
    break
  end
  step = bytes < 65536 and 50 or 10 -- 50 letters may be 13 MB
end
return letters
