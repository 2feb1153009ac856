-- Commit a post that has too many messages for one script. They are staged here, and publish.lua
-- stores them a part at a time. Until the last part is stored, no script reads or stores messages of
-- this queue (whole.lua), so that all of them become visible at once.
-- refused when full
-- ARGV: 1 offset, 2 to 6: deciding, 7 number of new messages, 8 number of new keys (not the batch's),
--       9 places (deciding), 10 the longest ttl (ms), 11 '1' where it has companions, 12 ticket of
--       recall or '', 13 where it has a batch key: '1' and the ids of all that were sent (16 bytes
--       each), of new ones as if the first of them had position 0; or, where all are new, '2' and the
--       second halves of their ids; 14.. parts (publish)
-- Answers: as post; or 'late' if the note of the ticket has ended, and recall must be called again.
-- include: deciding
local count, ticket = tonumber(ARGV[7]), ARGV[12]
if ticket ~= '' then
  local note = redis.call('HGET', state, 'checking')
  if not note or note:sub(7) ~= ticket or struct.unpack('>I6', note) <= now then
    return {'late'}
  end
end
local refused = refusal(count, tonumber(ARGV[8]) + (batch_key and 1 or 0), ARGV[11] == '1')
if refused then
  if refused[1] == 'full' or refused[1] == 'many_keys' then
    redis.call('HDEL', state, 'checking')
  end
  return refused
end
local first, until_when = take_positions(count), now + tonumber(ARGV[3])
local fields = {0, struct.pack('>I6I8I6', now, first, until_when)}
for i = 14, #ARGV do
  fields[#fields + 1] = i - 13
  fields[#fields + 1] = ARGV[i]
end
apply('HSET', staged, fields)
redis.call('HSET', state, 'part', 1)
redis.call('HDEL', state, 'checking')
keep(now + tonumber(ARGV[10]), {staged})
if batch_key then
  local kind, sent_ids = tonumber(ARGV[13]:sub(1, 1)), {}
  for at = 2, kind == 1 and #ARGV[13] or 0, 16 do
    local position = struct.unpack('>I8', ARGV[13], at)
    if position < count then
      position = first + position
    end
    sent_ids[#sent_ids + 1] = struct.pack('>I8', position) .. ARGV[13]:sub(at + 8, at + 15)
  end
  local answer = kind == 1 and ids_of_batch(sent_ids, ARGV[9]) or struct.pack('>I8', first) .. ARGV[13]:sub(2)
  remember({batch_key}, {ARGV[6]:sub(1, 16) .. answer}, until_when, kind)
end
return {'ok', schedule(now), struct.pack('>I8', first)}
