-- Which messages are in which group. Queues without any are spared the look.
-- include: life chunks
local function is_grouped(record)
  return bit.band(record:byte(32), 4) > 0
end

local function membership(record, position)
  local at = 35 + (record:byte(35) == 0 and 3 + struct.unpack('>H', record, 36) or 17)
  return record:sub(at, at + record:byte(at)) .. position
end

-- Note messages, each at the same place in both lists, in their groups.
local function join_groups(positions, records)
  local members = {}
  for i, record in ipairs(records) do
    members[2 * i - 1], members[2 * i] = '0', membership(record, positions[i])
  end
  apply('ZADD', groups, members)
  if not life[8] then
    redis.call('HSET', state, 'grouped', 1)
    life[8] = '1'
  end
  keep(now, {groups})
end

local function leave_groups(positions)
  local members = {}
  for i, record in ipairs(gather(messages, positions)) do
    if record and is_grouped(record) then
      members[#members + 1] = membership(record, positions[i])
    end
  end
  apply('ZREM', groups, members)
end
