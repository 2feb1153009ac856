-- The history of a message's hand-outs: the first one and the last ones (domain/attempts.py).
-- key attempts: hash, position -> hand-outs that have ended; expires by `keep`
-- include: life chunks tracks
local MOST_ATTEMPTS, MOST_BYTES = 16, 16384
local NO_TEXTS, LAPSED_TEXTS = '\255\255\255', '\6lapsed\255\255'

-- How many bytes the domain counts for reason and detail; many hand-outs end with the same.
local sizes = {}
local function size_of(texts)
  local size = sizes[texts]
  if not size then
    local reason = texts:byte(1) == 255 and 0 or texts:byte(1)
    local detail = struct.unpack('>H', texts, 2 + reason)
    size = reason + (detail == 65535 and 0 or detail)
    sizes[texts] = size
  end
  return size
end

-- An attempt as it is stored, and its size as the domain counts it. `texts` are reason and detail.
local function pack_attempt(row)
  local track, texts = row.track, row.texts
  local client = track:sub(51 + origin_length(track))
  local kind = client:byte(1)
  local size = 64 + (kind == 1 and 36 or kind == 2 and 32 or #client - 3) + size_of(texts)
  return struct.pack('>HH', 23 + #texts + #client, size) .. track:sub(12, 15) .. track:sub(41, 46)
    .. struct.pack('>I6I6B', row.at, row.wait, row.outcome) .. texts .. client, size
end

local function with_attempt(history, attempt, size)
  if not history then
    return attempt
  end
  local kept, total, at = {}, size, 1
  while at < #history do
    local length, bytes = struct.unpack('>HH', history, at)
    kept[#kept + 1] = {history:sub(at, at + 3 + length), bytes}
    total = total + bytes
    at = at + 4 + length
  end
  kept[#kept + 1] = {attempt, size}
  while #kept > 2 and (#kept > MOST_ATTEMPTS or total > MOST_BYTES) do
    total = total - table.remove(kept, 2)[2]
  end
  for i, each in ipairs(kept) do
    kept[i] = each[1]
  end
  return table.concat(kept)
end

-- End the hand-outs of messages: rows of position, track, outcome, at (when it ended), wait (how
-- long the message waits from then on) and texts. Their tracks are changed in the rows only, where is
-- noted until when they are parked; the history of one that has a reason is noted there too, for it leaves.
local function end_attempts(rows)
  if #rows == 0 then
    return
  end
  local positions, histories, changes = {}, {}, {}
  for i, row in ipairs(rows) do
    if has_flag(row.track, REMEMBERED) then
      positions[#positions + 1] = row.position
    end
  end
  for i, history in ipairs(gather(attempts, positions)) do
    histories[positions[i]] = history or nil
  end
  for _, row in ipairs(rows) do
    local track = row.track
    local history = with_attempt(histories[row.position], pack_attempt(row))
    if row.reason then
      row.history, row.stored = history, track
    else
      changes[#changes + 1] = row.position
      changes[#changes + 1] = history
    end
    local failures = struct.unpack('>I4', track, 47)
    if row.outcome == FAILED or row.outcome == LAPSED then
      failures = failures + 1
    end
    local flags, until_when = row.outcome + REMEMBERED, row.at + row.wait
    if until_when > now then
      flags, row.parked_until = flags + PARKED, until_when
    end
    row.track = track:sub(1, 33) .. struct.pack('>BI6', flags, row.parked_until or 0)
      .. track:sub(41, 46) .. struct.pack('>I4', failures) .. track:sub(51)
  end
  if #changes > 0 then
    apply('HSET', attempts, changes)
    keep(now, {attempts})
  end
end
