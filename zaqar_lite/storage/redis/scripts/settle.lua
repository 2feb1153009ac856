-- Do to messages of a claim what their consumer says of each.
-- ARGV: 1 offset, 2 version, 3 claim id; 5 to 12: policy; 13.. settlements: id (16 bytes), act,
--       two durations (6 bytes each, ms), reason and detail as attempts have them.
--       Acts: A; R and F, released or failed, with the delay; E, with ttl and grace; X, dead
-- Answers: 'ok', instant to register, moved, a letter for each: D done, N not found, L lapsed,
-- H held by another, T no target; and the dead letters as they are in the outbox, or none where the
-- driver must read it. Or 'arm' and now: nothing is done, and the driver must register the queue for the
-- sweep first.
-- include: version forget locate failing
local NO_DELAY = 281474976710655
local claim_id = ARGV[3]

local found, entries = {}, {}
do
  local wanted, seen = {}, {}
  for i = 13, #ARGV do
    local id = ARGV[i]:sub(1, 16)
    if not seen[id] then
      seen[id] = true
      wanted[#wanted + 1] = id
    end
  end
  local live = locate_live(wanted)
  for i, id in ipairs(live.ids) do
    local track = live.tracks[i]
    local is_its = track and track:sub(16, 31) == claim_id
    -- All fields from the beginning: a table that grows is made anew.
    entries[i] = {position = live.positions[i], record = live.records[i], track = track, is_its = is_its,
      is_held = is_its and is_held(track), is_over = false, is_gone = false, outcome = false, at = now,
      wait = false, texts = false, reason = false, parked_until = false}
    found[id] = entries[i]
  end
end

local function extend(entry, ttl, grace)
  local expires, own_ttl = struct.unpack('>I6I5', entry.track)
  local until_when = now + ttl
  if expires < until_when then
    own_ttl = ttl + grace
    expires = now + own_ttl
    entry.raised = expires
  end
  entry.track = struct.pack('>I6I5', expires, own_ttl) .. entry.track:sub(12, 34)
    .. struct.pack('>I6', until_when) .. entry.track:sub(41)
  entry.until_when = until_when
end

local acts = {
  A = function(entry)
    entry.is_gone = true
  end,
  R = function(entry, delay)
    entry.outcome, entry.wait = RELEASED, delay == NO_DELAY and 0 or delay
  end,
  F = function(entry, delay)
    entry.outcome, entry.wait = FAILED, delay ~= NO_DELAY and delay
    judge(entry)
  end,
  X = function(entry)
    entry.outcome, entry.wait = DEAD, 0
    entry.reason = entry.texts:sub(2, 1 + entry.texts:byte(1))
  end,
}

local function act_on(entry, act, settlement)
  if act == 'X' and target == '' then
    return 'T'
  end
  local first, second = struct.unpack('>I6I6', settlement, 18)
  if act == 'E' then
    extend(entry, first, second)
  else
    entry.texts = settlement:sub(30)
    acts[act](entry, first)
    entry.is_held, entry.is_over = false, true
    entry.is_gone = entry.is_gone or entry.reason
  end
  return 'D'
end

local function outcome_of(settlement)
  local entry, act = found[settlement:sub(1, 16)], settlement:sub(17, 17)
  if not entry or entry.is_gone then
    return 'N'
  elseif entry.is_held then
    return act_on(entry, act, settlement)
  elseif not entry.is_over and is_held(entry.track) then
    return 'H'
  end
  local ended = entry.is_over and entry.outcome or entry.is_its and bit.band(entry.track:byte(34), 7)
  local was_released = ended == RELEASED or ended == FAILED
  return was_released and (act == 'R' or act == 'F') and 'D' or 'L'
end

local outcomes = {}
for i = 13, #ARGV do
  outcomes[i - 12] = outcome_of(ARGV[i])
end

local gone, gone_tracks, rows, changes, raised, left_claim = {}, {}, {}, {}, {}, {}
local moved, first_end, last_letter, is_sorted = 0, nil, 0, true
for _, entry in ipairs(entries) do
  if entry.is_over then
    left_claim[entry.position] = true
    if entry.outcome then
      rows[#rows + 1] = entry
      if entry.reason then
        local position = struct.unpack('>I8', entry.position)
        moved, last_letter, is_sorted = moved + 1, position, is_sorted and position > last_letter
      end
    else
      gone[#gone + 1] = entry.position
      gone_tracks[#gone_tracks + 1] = entry.track
    end
  elseif entry.until_when then
    changes[#changes + 1] = entry.position
    changes[#changes + 1] = entry.track
    first_end = math.min(first_end or entry.until_when, entry.until_when)
  end
  if entry.raised and not entry.is_gone then
    raised[#raised + 1] = score_of(entry.raised)
    raised[#raised + 1] = entry.position
    keep(entry.raised, {})
  end
end
if moved > 0 and not is_armed then
  arm()
  return {'arm', now}
end

apply('ZREM', held, gone)
forget(gone, gone_tracks)
if not is_sorted then -- letters arrive in the order of their positions
  table.sort(rows, function(a, b) return struct.unpack('>I8', a.position) < struct.unpack('>I8', b.position) end)
end
apply('ZADD', expiry, raised)
local letters = let_go(rows, held)
apply('HSET', tracks, changes)
local claim = redis.call('HGET', claims, claim_id)
if claim and (first_end or next(left_claim)) then
  local left = {}
  for _, position in ipairs(positions_in(claim)) do
    if not left_claim[position] then
      left[#left + 1] = position
    end
  end
  local soonest = first_end and math.min(first_end, tonumber(redis.call('ZSCORE', leases, claim_id)))
  reduce_claim(claim_id, claim, left, soonest)
end
if #raised > 0 then
  keep(now, {tracks, expiry, attempts, ids, claims, leases, held})
end
local at = math.min(first_end or first_return or 0, first_return or first_end or 0)
if at > 0 then
  hasten(at)
  at = schedule(at)
end
return {'ok', at, moved, table.concat(outcomes), letters}
