-- Settle messages of a claim: do to each what its consumer asks for.
-- ARGV: 1 offset, 2 version, 3 claim id; 5 to 12: policy; 13.. pairs of a settlement and the ids (16
--       bytes each) of consecutive messages that it is for. A settlement is: act, two durations (6
--       bytes each, ms), reason and detail as attempts have them.
--       Acts: A acknowledge; R release and F fail, with a delay; E extend, with ttl and grace; X dead
-- Answers: 'ok', instant to register, moved, a letter for each: D done, N not found, L lapsed,
-- H held by another, T no target; and the dead letters as they are in the outbox, or none if the
-- driver must read the outbox. Or 'arm' and now: nothing was done, and the driver must first
-- register the queue for the sweep.
-- include: version forget locate failing
local NO_DELAY = 281474976710655
local claim_id = ARGV[3]

local wanted, said, count = {}, {}, 0
for n = 13, #ARGV, 2 do
  local words, named = ARGV[n], ARGV[n + 1]
  local act, first, second = struct.unpack('>c1I6I6', words)
  local texts, delay = words:sub(14), first ~= NO_DELAY and first
  -- The settlement, with how it ends the attempts of its messages.
  local what = {outcome = RELEASED, at = now, wait = delay or 0, texts = texts}
  if act == 'F' then
    what = failure(FAILED, now, delay, texts)
  elseif act == 'X' then
    what = {outcome = DEAD, at = now, wait = 0, texts = texts, reason = texts:sub(2, 1 + texts:byte(1))}
  end
  what.act, what.first, what.second = act, first, second
  for at = 1, #named, 16 do
    count = count + 1
    wanted[count], said[count] = named:sub(at, at + 15), what
  end
end
local live, places = locate_live(wanted), {}
for i, id in ipairs(live.ids) do
  places[id] = i
end

-- Deleted messages; rows of messages that are released or become dead letters (failing); and the new
-- lease ends of extended messages, by their places in `live`.
local gone, rows, extended, raised, left_claim = {positions = {}, tracks = {}}, {}, {}, {}, {count = 0}
-- How this call ended the attempts of messages, by place; 0 for messages that have left the queue.
local ended = {}
local moved, first_end, last_letter, is_sorted = 0, nil, 0, true

local function extend(i, rest, what)
  local until_when, lifetime = now + what.first, live.tracks[i]:sub(1, 11)
  if struct.unpack('>I6', lifetime) < until_when then
    lifetime = struct.pack('>I6I5', until_when + what.second, what.first + what.second)
    raised[live.positions[i]] = until_when + what.second
  end
  what[rest] = what[rest] or rest:sub(1, 23) .. struct.pack('>I6', until_when) .. rest:sub(30)
  live.tracks[i] = lifetime .. what[rest]
  extended[i] = until_when
end

local function let_go_of(i, rest, what)
  local position, track = live.positions[i], live.tracks[i]
  left_claim[position], left_claim.count = true, left_claim.count + 1
  extended[i], ended[i] = nil, 0
  if what.act == 'A' then
    raised[position] = nil
    leave(gone, position, track)
    return
  end
  local row = {position = position, track = track, ending = ending_of(rest, what), record = live.records[i],
    history = false}
  rows[#rows + 1] = row
  if row.ending.reason then
    local number = struct.unpack('>I8', position)
    moved, last_letter, is_sorted, raised[position] = moved + 1, number, is_sorted and number > last_letter, nil
  else
    ended[i] = what.outcome
  end
end

-- Who holds a message, by the part of its track behind its expiry: 'mine' if this claim does, 'H' if
-- another one does, else the outcome by which this claim released it, or false.
local standings = {}
local function standing_of(rest)
  local standing = standings[rest]
  if standing == nil then
    local is_its, flags = rest:sub(5, 20) == claim_id, rest:byte(23)
    if bit.band(flags, HELD) ~= 0 and struct.unpack('>I6', rest, 24) > now then
      standing = is_its and 'mine' or 'H'
    else
      standing = is_its and bit.band(flags, 7)
    end
    standings[rest] = standing
  end
  return standing
end

local function outcome_of(what, i)
  local let_go, track = ended[i], live.tracks[i]
  if not i or let_go == 0 then
    return 'N'
  elseif not let_go then
    local rest = track and track:sub(12)
    let_go = track and standing_of(rest)
    if let_go == 'H' then
      return 'H'
    elseif let_go == 'mine' then
      if what.act == 'X' and target == '' then
        return 'T'
      elseif what.act == 'E' then
        extend(i, rest, what)
      else
        let_go_of(i, rest, what)
      end
      return 'D'
    end
  end
  local was_released = let_go == RELEASED or let_go == FAILED
  return was_released and (what.act == 'R' or what.act == 'F') and 'D' or 'L'
end

local outcomes = {}
for n, id in ipairs(wanted) do
  outcomes[n] = outcome_of(said[n], places[id])
end
if moved > 0 and not is_armed then
  arm()
  return {'arm', now}
end

local changes, expiring = {}, {}
for i, until_when in pairs(extended) do
  changes[#changes + 1] = live.positions[i]
  changes[#changes + 1] = live.tracks[i]
  first_end = math.min(first_end or until_when, until_when)
end
for position, expires in pairs(raised) do
  expiring[#expiring + 1] = score_of(expires)
  expiring[#expiring + 1] = position
  keep(expires, {})
end
if not is_sorted then -- letters must reach their target in the order of their positions
  table.sort(rows, function(a, b) return struct.unpack('>I8', a.position) < struct.unpack('>I8', b.position) end)
end
apply('ZADD', expiry, expiring)
local letters = let_go(rows, held, gone, changes)
local claim = redis.call('HGET', claims, claim_id)
if claim and (first_end or left_claim.count > 0) then
  reduce_claim(claim_id, claim, left_in(claim, left_claim))
  if first_end then
    redis.call('ZADD', leases, 'XX', 'LT', first_end, claim_id)
  end
end
if #expiring > 0 then
  keep(now, {tracks, expiry, attempts, ids, claims, leases, held})
end
local at = math.min(first_end or first_return or 0, first_return or first_end or 0)
if at > 0 then
  hasten(at)
  at = schedule(at)
end
return {'ok', at, moved, table.concat(outcomes), letters}
