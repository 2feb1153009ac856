-- Delayed messages: by the field `d`, and by position.
-- include: ready
local function leave_delayed(positions)
  apply('ZREM', due, positions)
  apply('ZREM', waiting, positions)
end

-- Make ready what is due, up to `budget`. Answers how many, and whether nothing due is left.
local function promote(budget)
  local positions = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, budget)
  if #positions > 0 then
    leave_delayed(positions)
    make_ready(positions)
  end
  return #positions, #positions < budget
end

-- Make ready up to `count` delayed messages whatever their `d`, which becomes now. Answers how many.
local function release_delayed(count)
  local positions = redis.call('ZRANGE', due, 0, count - 1)
  if #positions > 0 then
    leave_delayed(positions)
    for i, record in ipairs(gather(messages, positions)) do
      if record and struct.unpack('>I6', record, 18) > now then
        record = record:sub(1, 17) .. struct.pack('>I6', now) .. record:sub(24)
        redis.call('HSET', messages, positions[i], record)
      end
    end
    make_ready(positions)
  end
  return #positions
end
