-- New messages as the driver packs them: ttl (5 bytes, ms), delay (5 bytes, ms), record from its
-- randomness on.
-- include: ready groups

-- Store them at positions from `first` on, as posted at the instant `at`, where so many messages are `there`.
-- Answers their positions, and when the first of them is due or expires.
local function store(blobs, first, at, there)
  local soonest, latest, first_due = at + 253402300799000, at, nil
  -- What messages of one ttl and delay have in common: the head of the record, and the scores.
  local kinds = {}
  local function kind_of(times)
    local ttl, delay = struct.unpack('>I5I5', times)
    local expires, d = at + ttl, delay > 0 and at + delay or 0
    latest = math.max(latest, expires)
    soonest = math.min(soonest, expires, d > 0 and d or expires)
    first_due = d > 0 and math.min(first_due or d, d) or first_due
    kinds[times] = {
      head = struct.pack('>I6I6I5I6', at, expires, ttl, d),
      expires = string.format('%.0f', expires),
      d = d > 0 and string.format('%.0f', d),
    }
    return kinds[times]
  end
  local stored, records, deadlines = {}, {}, {}
  local ready_now, priorities, is_plain, delayed, delays = {}, {}, true, {}, {}
  local grouped, members = {}, {}
  for k, blob in ipairs(blobs) do
    local times = blob:sub(1, 10)
    local kind = kinds[times] or kind_of(times)
    local position, record = struct.pack('>I8', first + k - 1), kind.head .. blob:sub(11)
    stored[k] = position
    deadlines[2 * k - 1], deadlines[2 * k] = kind.expires, position
    records[2 * k - 1], records[2 * k] = position, record
    if blob:byte(19) >= 4 then -- its flags: it has a group
      grouped[#grouped + 1], members[#members + 1] = position, record
    end
    if not kind.d then
      local at, priority = #ready_now + 1, priority_of(record)
      ready_now[at], priorities[at] = position, priority
      is_plain = is_plain and priority == DEFAULT_PRIORITY
    else
      delayed[#delayed + 1] = position
      delays[#delays + 1] = kind.d
      if not life[4] and priority_of(record) ~= DEFAULT_PRIORITY then
        redis.call('HSET', state, 'ranked', 1)
        life[4] = '1'
      end
    end
  end
  apply('HSET', messages, records)
  apply('ZADD', expiry, deadlines)
  keep(latest, there == 0 and {messages, expiry} or {})
  if #grouped > 0 then
    join_groups(grouped, members)
  end
  if #ready_now > 0 then
    enter_ready(ready_now, not is_plain and priorities or nil)
  end
  if #delayed > 0 then
    add_to(due, delayed, delays)
    add_to(waiting, delayed)
    keep(latest, {due, waiting})
    hasten(first_due)
  end
  return stored, soonest
end
