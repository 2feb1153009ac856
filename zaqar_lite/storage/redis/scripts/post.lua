-- Store messages in the order of the batch, all or none.
-- refused when full
-- ARGV: 1 offset, 2 to 6: deciding, 7 number of messages n, 8 of companions m, 9 places of a batch
--       whose keys repeat (deciding);
--       10..9+n: messages (storing);
--       10+n..9+n+m: companions (posting); their number is that of their message;
--       10+n+m..9+2n+m, where any has one: the idempotency key of each message, '' for none
-- Answers: 'ok', instant to register, first position; then, where keys were given, for each
-- message '' (stored, at the next position) or the id that stands for it already.
-- A known batch key: 'known', the kind of its entry, and its ids (codec.py). A key that stands for something else:
-- 'reused' and the index of its message, -1 for the batch key. Full: 'full' (see make_room), or
-- 'many_keys' and when the oldest of them ends (ms from now). With companions also 'arm' and now:
-- nothing is done yet, the driver must register the queue and come again. 'wait': another post
-- decides by these keys; come again in a moment.
-- include: deciding
-- rarely: note_visit is_checked_by_another ids_of_batch gather join_groups send remember read_entry
local count, companions = tonumber(ARGV[7]), tonumber(ARGV[8])
local keys_at = 9 + count + companions
local keyed = #ARGV > keys_at
if keyed and is_checked_by_another('') then
  return {'wait'}
end

local fields, entries = {}, {}
if keyed then
  for i = 1, count do
    fields[i] = 'm' .. ARGV[keys_at + i]:sub(17)
  end
  entries = gather(keys, fields)
end
local answers, blobs, number_of, new_keys = {}, {}, {}, batch_key and 1 or 0
for i = 1, count do
  local digest, id, is_same = keyed and ARGV[keys_at + i]:sub(1, 16) or '', false, true
  if digest ~= '' then
    id, is_same = read_entry(entries[i], digest)
  end
  if not is_same then
    return {'reused', i - 1}
  end
  answers[i] = id or ''
  if not id then
    blobs[#blobs + 1] = ARGV[9 + i]
    number_of[i] = #blobs
    new_keys = new_keys + (digest ~= '' and 1 or 0)
  end
end
local refused = refusal(#blobs, new_keys, companions > 0)
if refused then
  return refused
end

local first = take_positions(#blobs)
local stored, soonest = store(blobs, first, now, there)
if companions > 0 then
  local words = {}
  for i = 1, companions do
    words[i] = ARGV[9 + count + i]
  end
  send(words, function(i)
    return number_of[i] and first + number_of[i] - 1
  end)
end
if new_keys > 0 then
  local sent_ids, new_fields, known = {}, {}, {}
  for i = 1, count do
    local k = number_of[i]
    sent_ids[i] = k and stored[k] .. blobs[k]:sub(11, 18) or answers[i]
    if k and keyed and ARGV[keys_at + i] ~= '' then
      new_fields[#new_fields + 1] = fields[i]
      known[#new_fields] = ARGV[keys_at + i]:sub(1, 16) .. sent_ids[i]
    end
  end
  if batch_key then
    new_fields[#new_fields + 1] = batch_key
    known[#new_fields] = ARGV[6]:sub(1, 16) .. ids_of_batch(sent_ids, ARGV[9])
  end
  local until_when = now + tonumber(ARGV[3])
  remember(new_fields, known, until_when, 1)
  soonest = math.min(soonest, until_when)
end
local answer = {'ok', schedule(soonest), struct.pack('>I8', first)}
if keyed then
  for i = 1, count do
    answer[3 + i] = answers[i]
  end
end
return answer
