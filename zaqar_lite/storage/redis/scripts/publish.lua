-- Store the next part of a post that was committed in parts (stage.lua).
-- ARGV: 1 offset
-- A part: its kind, how many messages are in the parts before it (4 bytes), then words with their
-- lengths (4 bytes) before them. Kinds: 'm' messages; 'k' each message, then its key or ''; 'c' companions,
-- whose number is that of their message among the new ones.
-- Answers: 'more', or 'ok' when nothing is left to store.
-- include: posting
local head, part = unpack(redis.call('HMGET', staged, 0, life[7] or ''))
if not part then
  redis.call('UNLINK', staged)
  redis.call('HDEL', state, 'part')
  return {'ok'}
end
local at, first, until_when = struct.unpack('>I6I8I6', head)
local kind, before = struct.unpack('>c1I4', part)
local words, place = {}, 6
while place <= #part do
  words[#words + 1], place = struct.unpack('>I4c0', part, place)
end
if kind == 'c' then
  send(words, function(number) return first + number end)
else
  local blobs, fields, entries = words, {}, {}
  if kind == 'k' then
    blobs = {}
    for i = 1, #words, 2 do
      blobs[#blobs + 1] = words[i]
    end
  end
  local stored = store(blobs, first + before, at, redis.call('HLEN', messages))
  for i = 2, kind == 'k' and #words or 0, 2 do
    if words[i] ~= '' then
      fields[#fields + 1] = 'm' .. words[i]:sub(17)
      entries[#fields] = words[i]:sub(1, 16) .. stored[i / 2] .. words[i - 1]:sub(11, 18)
    end
  end
  if #fields > 0 then
    remember(fields, entries, until_when, 1)
  end
end
redis.call('HDEL', staged, life[7])
local following = tonumber(life[7]) + 1
if redis.call('HEXISTS', staged, following) == 1 then
  redis.call('HSET', state, 'part', following)
  return {'more'}
end
redis.call('UNLINK', staged)
redis.call('HDEL', state, 'part')
return {'ok'}
