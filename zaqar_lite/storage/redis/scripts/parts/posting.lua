-- What posts leave beside messages, whether they are one script or come in parts.
-- A key comes as its digest (16 bytes) and its text.
-- include: storing

-- Put companions into the outbox: number of the message (4 bytes), where its id goes in the rest (4
-- bytes), length of the target's tag (2 bytes), tag, and the rest: as a message that has the random
-- half of the id already. `position_of` tells where the message is, or nil where it was not stored.
local function send(companions, position_of)
  local letters, latest = {}, now + 60000
  for _, word in ipairs(companions) do
    local number, at, size = struct.unpack('>I4I4H', word)
    local position = position_of(number)
    if position then
      local rest = word:sub(11 + size)
      latest = math.max(latest, now + struct.unpack('>I5', rest))
      letters[#letters + 1] = struct.pack('>H', size) .. word:sub(11, 10 + size) .. '\255\255'
        .. rest:sub(1, at) .. ('%016x'):format(position) .. rest:sub(at + 17)
    end
  end
  if #letters > 0 then
    local seq = take_positions(#letters)
    for i, letter in ipairs(letters) do
      letters[i] = struct.pack('>I8', seq + i - 1) .. letter
    end
    apply('RPUSH', outbox, letters)
    keep(latest, {outbox})
    look_after_outbox()
  end
end

-- Remember keys until an instant: fields, and for each its digest and ids, in that of the two kinds.
local function remember(fields, entries, until_when, kind)
  local known, head = {}, struct.pack('>I6B', until_when, kind)
  for i, field in ipairs(fields) do
    known[2 * i - 1], known[2 * i] = field, head .. entries[i]
  end
  apply('HSET', keys, known)
  add_to(forgets, fields, string.format('%.0f', until_when))
  keep(until_when, {keys, forgets})
end
