-- Whether a post may be stored, and what is known of it.
-- ARGV: 2 version, 3 idempotency window (ms), 4 most keys, 5 most messages, 6 batch key with its
--       digest ('' for none)
-- include: version whole posting
local batch_key = ARGV[6] ~= '' and 'b' .. ARGV[6]:sub(17)

-- The ids that an entry answers, and whether it stands for what has this digest.
local function read_entry(entry, digest)
  if not entry or struct.unpack('>I6', entry) <= now then
    return false, true
  end
  return entry:sub(24), entry:sub(8, 23) == digest
end

-- For so long (ms) the note of a post in parts holds up others.
local CHECKING = 5000

-- Whether a post in parts that has another ticket decides by the keys of this queue (recall.lua).
local function is_checked_by_another(ticket)
  local note = redis.call('HGET', state, 'checking')
  if not note or note:sub(7) == ticket then
    return false
  end
  local left = struct.unpack('>I6', note) - now
  return left > 0 and left <= CHECKING -- more are left where a failover has set the clock back
end

-- The ids of all messages of a batch, of those of the sent ones; `places` says which of these stands
-- for each message (4 bytes each), '' where all were sent.
local function ids_of_batch(sent_ids, places)
  if places == '' then
    return table.concat(sent_ids)
  end
  local all = {}
  for i = 1, #places / 4 do
    all[i] = sent_ids[struct.unpack('>I4', places, 4 * i - 3)]
  end
  return table.concat(all)
end

if batch_key then
  local entry = redis.call('HGET', keys, batch_key)
  local known, is_same = read_entry(entry, ARGV[6]:sub(1, 16))
  if not is_same then
    return {'reused', -1}
  elseif known then
    return {'known', entry:byte(7), known}
  end
end

-- What the driver is told instead of the post's outcome: where there is no room, where the sweep must
-- know of the queue while companions are on their way, or nil. `there` is how many messages the queue has.
local there
local function refusal(count, new_keys, has_companions)
  there = redis.call('HLEN', messages)
  if there + count > tonumber(ARGV[5]) then
    return {'full'}
  end
  if new_keys > 0 then
    local old = redis.call('ZRANGEBYSCORE', forgets, '-inf', now, 'LIMIT', 0, 500)
    if #old > 0 then
      apply('ZREM', forgets, old)
      apply('HDEL', keys, old)
    end
    if redis.call('ZCARD', forgets) + new_keys > tonumber(ARGV[4]) then
      if #old == 500 then
        return {'again', now, 500}
      end
      local oldest = redis.call('ZRANGE', forgets, 0, 0, 'WITHSCORES')[2]
      return {'many_keys', (oldest or now) - now}
    end
  end
  if has_companions and tonumber(redis.call('HGET', state, 'armed') or 0) < now + ARMED / 2 then
    redis.call('HSET', state, 'armed', now + ARMED)
    keep(now + 60000, {})
    return {'arm', now}
  end
end
