-- Calls with any number of values: Lua puts a few thousand on its stack at most.
local CHUNK = 1000

-- Call `command` on a key with all values; pairs of them stay together. Answers the last reply.
local function apply(command, key, values)
  local reply
  for first = 1, #values, CHUNK do
    reply = redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
  return reply
end

-- The values of a hash's fields, in the order of the fields; false where there is none.
local function gather(key, fields)
  if #fields <= CHUNK then
    return #fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}
  end
  local found = {}
  for first = 1, #fields, CHUNK do
    local last = math.min(first + CHUNK - 1, #fields)
    for i, value in ipairs(redis.call('HMGET', key, unpack(fields, first, last))) do
      found[first + i - 1] = value
    end
  end
  return found
end

-- The arguments of the call from the n-th on.
local function arguments_from(n)
  local found = {}
  for i = n, #ARGV do
    found[i - n + 1] = ARGV[i]
  end
  return found
end
