-- Calls with any number of values: Lua puts a few thousand on its stack at most.
local CHUNK = 1000

local function for_chunks(values, act)
  for first = 1, #values, CHUNK do
    act(first, math.min(first + CHUNK - 1, #values))
  end
end

-- Call `command` on a key with all values; pairs of them stay together.
local function apply(command, key, values)
  for_chunks(values, function(first, last)
    redis.call(command, key, unpack(values, first, last))
  end)
end

-- The values of a hash's fields, in the order of the fields; false where there is none.
local function gather(key, fields)
  local found = {}
  for_chunks(fields, function(first, last)
    for i, value in ipairs(redis.call('HMGET', key, unpack(fields, first, last))) do
      found[first + i - 1] = value
    end
  end)
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
