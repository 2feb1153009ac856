-- The records of one kind. A field is project and name as `kind_records.py` writes them; a stored
-- record is version (8 bytes), deadline (6 bytes, 0: none) and value.
-- values: hash, field -> record; fields removed by delete_record and sweep_records
-- fields: zset, score 0, the same fields, in the order of listings
-- ends: zset, field by deadline (ms)
-- counters: hash; last (version)
local function is_live(record)
  local expires = record and struct.unpack('>I6', record, 9)
  return record and (expires == 0 or expires > now)
end

local function live_version(record)
  return is_live(record) and (struct.unpack('>I8', record)) or 0
end

local function remove(field)
  call('HDEL', values, field)
  call('ZREM', fields, field)
  call('ZREM', ends, field)
end

-- Remove the first expired records. Answers how many.
local function expire_records(most)
  local found = call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, most)
  for _, field in ipairs(found) do
    remove(field)
  end
  return #found
end

-- Which bound of a new record is reached, from 0; nil where none is. Of each bound, from `first` on:
-- low and high ends as ZLEXCOUNT takes them, and most.
local function reached_bound(first)
  for at = first, #ARGV, 3 do
    local most = tonumber(ARGV[at + 2])
    local full = call('ZLEXCOUNT', fields, ARGV[at], ARGV[at + 1]) >= most
    if full and expire_records(500) > 0 then
      full = call('ZLEXCOUNT', fields, ARGV[at], ARGV[at + 1]) >= most
    end
    if full then
      return (at - first) / 3
    end
  end
end

-- Write a record at its expected version.
-- ARGV: 1 offset, 2 field, 3 expected version ('' for any), 4 ttl (ms, '' for none), 5 value; the bounds
-- Answers: 'ok', version, and the deadline, at which the driver must register the kind, or 0; 'changed'; or 'full'
-- and which bound.
register('put_record', 'kind', UNLESS_FULL, function()
  if ARGV[3] ~= '' and live_version(call('HGET', values, ARGV[2])) ~= tonumber(ARGV[3]) then
    return {'changed'}
  end
  if #ARGV > 5 and live_version(call('HGET', values, ARGV[2])) == 0 then
    local full = reached_bound(6)
    if full then
      return {'full', full}
    end
  end
  local last = tonumber(call('HGET', counters, 'last') or 0)
  local version = math.max(last + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
  local expires = ARGV[4] ~= '' and now + tonumber(ARGV[4]) or 0
  call('HSET', counters, 'last', score_of(version))
  call('HSET', values, ARGV[2], struct.pack('>I8I6', version, expires) .. ARGV[5])
  call('ZADD', fields, 0, ARGV[2])
  if expires == 0 then
    call('ZREM', ends, ARGV[2])
  else
    call('ZADD', ends, expires, ARGV[2])
  end
  return {'ok', version, expires}
end)

-- Read a live record.
-- ARGV: 1 offset, 2 field
-- Answers: 'ok' and the record, '' when there is none.
register('get_record', 'kind', ALWAYS, function()
  local record = call('HGET', values, ARGV[2])
  return {'ok', is_live(record) and record or ''}
end)

-- Delete a record at its version.
-- ARGV: 1 offset, 2 field, 3 expected version ('' for any)
-- Answers: 'ok' and whether there was one (0 or 1); or 'changed'.
register('delete_record', 'kind', ALWAYS, function()
  local version = live_version(call('HGET', values, ARGV[2]))
  if version > 0 and ARGV[3] ~= '' and version ~= tonumber(ARGV[3]) then
    return {'changed'}
  end
  if version > 0 then
    remove(ARGV[2])
  end
  return {'ok', version > 0 and 1 or 0}
end)

-- List live records in order. Stop at the limit, after 1,000 examined entries or at about 256 KiB.
-- ARGV: 1 offset, 2 low and 3 high ends as ZRANGEBYLEX takes them, 4 limit
-- Answers: the last field examined or '', '1' at the end; field and record of each.
register('list_records', 'kind', ALWAYS, function()
  local low, limit, examined, bytes = ARGV[2], tonumber(ARGV[4]), 0, 0
  local answer, shown = {'', ''}, 0
  while shown < limit and examined < 1000 and bytes < 262144 do
    local count = math.min(limit - shown, 4 + examined, 32)
    local found = call('ZRANGEBYLEX', fields, low, ARGV[3], 'LIMIT', 0, count)
    for i, record in ipairs(#found > 0 and call('HMGET', values, unpack(found)) or {}) do
      if is_live(record) then
        shown = shown + 1
        bytes = bytes + #record
        answer[2 * shown + 1], answer[2 * shown + 2] = found[i], record
      end
    end
    examined = examined + #found
    if #found < count then
      answer[2] = '1'
      break
    end
    answer[1] = found[#found]
    low = '(' .. answer[1]
  end
  return answer
end)

-- Remove expired records of a kind, and find when it must be visited next.
-- ARGV: 1 offset, 2 how many at most
-- Answers: how many, next instant or 0.
register('sweep_records', 'kind', ALWAYS, function()
  local removed = expire_records(math.min(tonumber(ARGV[2]), 500))
  return {removed, tonumber(call('ZRANGE', ends, 0, 0, 'WITHSCORES')[2] or 0)}
end)
