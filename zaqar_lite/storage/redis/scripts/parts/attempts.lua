-- The history of a message's hand-outs: the first one and the last ones (domain/attempts.py).
-- include: life chunks tracks
local MOST_ATTEMPTS, MOST_BYTES = 16, 16384
local NO_TEXTS, LAPSED_TEXTS = '\255\255\255', '\6lapsed\255\255'

-- How many bytes the domain counts for reason and detail.
local function size_of(texts)
  local reason = texts:byte(1) == 255 and 0 or texts:byte(1)
  local detail = struct.unpack('>H', texts, 2 + reason)
  return reason + (detail == 65535 and 0 or detail)
end

-- What comes of a hand-out that ends in some way, by the `rest` of its message's track, from the claim count
-- on: the attempt as it is stored; its size as the domain counts it; whether it continues a history; the rest
-- of the track from now on; until when the message is parked, or nil; and the reason where it is a dead letter.
-- A way is: outcome, texts (reason and detail), at (when it ended, nil for the lease's end), wait (how long the
-- message waits from then on) and reason; and for failures, whose wait may be false, judge (failing). The
-- messages of a claim mostly differ in when they expire alone, so what is alike is made once and kept in the way.
local function ending_of(rest, way)
  if way[rest] then
    return way[rest]
  end
  local count, failures, client = struct.unpack('>I4', rest), struct.unpack('>I4', rest, 36), nil
  local at, wait, reason = way.at or struct.unpack('>I6', rest, 24), way.wait, way.reason
  if way.judge then
    failures = failures + 1
    reason, wait = way.judge(count, failures, wait)
  end
  client = rest:sub(struct.unpack('>H', rest, 21) - 32728)
  local kind, ended = client:byte(1), struct.pack('>I6I6B', at, wait, way.outcome) .. way.texts
  local size = 64 + (kind == 1 and 36 or kind == 2 and 32 or #client - 3) + size_of(way.texts)
  local until_when = at + wait > now and at + wait or nil
  local flags = way.outcome + REMEMBERED + (until_when and PARKED or 0)
  local ending = {size = size, until_when = until_when, reason = reason,
    goes_on = bit.band(rest:byte(23), REMEMBERED) ~= 0,
    attempt = struct.pack('>HH', 10 + #ended + #client, size) .. rest:sub(1, 4) .. rest:sub(30, 35) .. ended
      .. client,
    rest = rest:sub(1, 22) .. struct.pack('>BI6', flags, until_when or 0) .. rest:sub(30, 35)
      .. struct.pack('>I4', failures) .. rest:sub(40)}
  if not way.varies then
    way[rest] = ending
  end
  return ending
end

-- The track of a row from now on.
local function ended_track(row)
  return row.track:sub(1, 11) .. row.ending.rest
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

-- Write down the hand-outs that end: rows of position, track and ending. The history of one that is a dead
-- letter is noted in its row, for it leaves.
local function end_attempts(rows)
  if #rows == 0 then
    return
  end
  local positions, histories, changes = {}, {}, {}
  for i, row in ipairs(rows) do
    if row.ending.goes_on then
      positions[#positions + 1] = row.position
    end
  end
  for i, history in ipairs(gather(attempts, positions)) do
    histories[positions[i]] = history or nil
  end
  for _, row in ipairs(rows) do
    local ending = row.ending
    local history = with_attempt(histories[row.position], ending.attempt, ending.size)
    if ending.reason then
      row.history = history
    else
      changes[#changes + 1] = row.position
      changes[#changes + 1] = history
    end
  end
  if #changes > 0 then
    apply('HSET', attempts, changes)
    keep(now, {attempts})
  end
end
