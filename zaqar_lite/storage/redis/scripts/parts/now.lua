-- `now`: milliseconds since 1970 by this Redis server's clock, plus the offset of tests (ARGV[1]).
local offset = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) + offset
