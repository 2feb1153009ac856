-- The records of one kind. A field is project and name as `kind_records.py` writes them; a stored
-- record is version (8 bytes), deadline (6 bytes, 0: none) and value.
-- key values: hash, field -> record; fields removed by delete_record and sweep_records
-- key fields: zset, score 0, the same fields, in the order of listings
-- key ends: zset, field by deadline (ms)
-- key counters: hash; last (version), due (ms): when the sweep will come
-- include: now
local function is_live(record)
  local expires = record and struct.unpack('>I6', record, 9)
  return record and (expires == 0 or expires > now)
end

local function live_version(record)
  return is_live(record) and (struct.unpack('>I8', record)) or 0
end

local function remove(field)
  redis.call('HDEL', values, field)
  redis.call('ZREM', fields, field)
  redis.call('ZREM', ends, field)
end
