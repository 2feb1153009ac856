-- Tell which messages of a post in parts are known by their keys, before it is committed.
-- ARGV: 1 offset, 2 and 6: deciding, 7 ticket (8 bytes; '' where the post will be refused in any
--       case), 8.. keys, '' for none
-- Answers: 'ok' and for each key '' (new), the id that stands for it, or '!' where it stands for
-- something else; or as post: 'known', 'reused' (of the batch key), 'wait'.
-- The ticket is noted. Until that note ends, other posts with keys of this queue have to wait. A
-- refusal ends it.
-- include: deciding
if is_checked_by_another(ARGV[7]) then
  return {'wait'}
end
local words = arguments_from(8)
local fields, answer, is_refused = {}, {'ok'}, ARGV[7] == ''
for i, word in ipairs(words) do
  fields[i] = 'm' .. word:sub(17)
end
for i, entry in ipairs(gather(keys, fields)) do
  local digest = words[i]:sub(1, 16)
  local id, is_same = false, true
  if digest ~= '' then
    id, is_same = read_entry(entry, digest)
  end
  answer[1 + i] = is_same and (id or '') or '!'
  is_refused = is_refused or not is_same
end
if is_refused then
  redis.call('HDEL', state, 'checking')
else
  redis.call('HSET', state, 'checking', struct.pack('>I6', now + CHECKING) .. ARGV[7])
  keep(now, {})
end
return answer
