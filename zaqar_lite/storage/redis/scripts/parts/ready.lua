-- The ready index, in the order of claims: (priority, position).
-- include: life chunks
local DEFAULT_PRIORITY = 100

local function priority_of(record)
  if record and record:byte(32) % 2 == 1 then
    return struct.unpack('>i4', record, struct.unpack('>H', record, 33) - 3)
  end
  return DEFAULT_PRIORITY
end

-- Who waits looks again every thirty seconds (readiness.py), a little sooner or later: what is due later
-- than that they find themselves.
local function hasten(at)
  if at < now + 37000 then
    redis.call('SPUBLISH', readiness, 0)
  end
end

-- An instant as the text of a score. One that follows itself is written out once.
local written, text_of_written
local function score_of(instant)
  if instant ~= written then
    written, text_of_written = instant, string.format('%.0f', instant)
  end
  return text_of_written
end

-- Add to a zset. `scores` is one for all or a list, best as text: Redis writes out each number that
-- it is given. All are '0' where there is none.
local function add_to(key, positions, scores)
  local both, one = {}, type(scores) ~= 'table' and (scores or '0')
  for i, position in ipairs(positions) do
    both[2 * i - 1], both[2 * i] = one or scores[i], position
  end
  apply('ZADD', key, both)
end

-- Make messages ready whose priorities are given; all have the default where there are none.
local function enter_ready(positions, priorities)
  redis.call('SPUBLISH', readiness, #positions)
  local plain, special, ranks = priorities and {} or positions, {}, {}
  for i, priority in ipairs(priorities or {}) do
    if priority == DEFAULT_PRIORITY then
      plain[#plain + 1] = positions[i]
    else
      special[#special + 1] = positions[i]
      ranks[#ranks + 1] = priority
    end
  end
  add_to(ready, plain)
  keep(now, {ready})
  if #special > 0 then
    add_to(ranked, special, ranks)
    add_to(aside, special)
    redis.call('HSET', state, 'ranked', 1)
    life[4] = '1'
    keep(now, {ranked, aside})
  end
end

-- Make stored messages ready, each at its own position.
local function make_ready(positions)
  if #positions == 0 then
    return
  end
  local priorities
  if life[4] then
    priorities = {}
    for i, record in ipairs(gather(messages, positions)) do
      priorities[i] = priority_of(record)
    end
  end
  enter_ready(positions, priorities)
end

local function leave_ready(positions)
  apply('ZREM', ready, positions)
  if life[4] then
    apply('ZREM', ranked, positions)
    apply('ZREM', aside, positions)
  end
end

-- The first `count` ready positions in the order of claims.
local function first_ready(count)
  if not life[4] then
    return redis.call('ZRANGE', ready, '0', count == 1 and '0' or count - 1)
  end
  local found = redis.call('ZRANGEBYSCORE', ranked, '-inf', '(' .. DEFAULT_PRIORITY, 'LIMIT', 0, count)
  local function append(more)
    for _, position in ipairs(more) do
      found[#found + 1] = position
    end
  end
  if #found < count then
    append(redis.call('ZRANGE', ready, 0, count - #found - 1))
  end
  if #found < count then
    append(redis.call('ZRANGEBYSCORE', ranked, '(' .. DEFAULT_PRIORITY, '+inf', 'LIMIT', 0, count - #found))
  end
  return found
end
