-- Count live messages by state; find the oldest and the newest.
-- ARGV: 1 offset
-- Answers: 'ok', now, ready, delayed, claimed; then what `show` gives for the oldest and the newest,
-- and for the first ready one.
-- include: whole census show
local waiting_again = redis.call('ZCARD', parked)
local answer = {'ok', now,
  redis.call('ZCARD', ready) + redis.call('ZCARD', aside) + redis.call('ZCARD', lapsed),
  redis.call('ZCARD', waiting) + waiting_again, redis.call('ZCARD', held) - waiting_again}
for _, rank in ipairs({0, -1}) do
  local best
  for _, source in ipairs(sources) do
    local position = redis.call('ZRANGE', source, rank, rank)[1]
    if position then
      local number = struct.unpack('>I8', position)
      if not best or (rank == 0 and number < best) or (rank == -1 and number > best) then
        best = number
      end
    end
  end
  if best then
    local position = struct.pack('>I8', best)
    show(answer, position, redis.call('HGET', messages, position), tracks_of({position})[1])
  end
end
for _, source in ipairs({ready, aside, lapsed}) do
  local position = redis.call('ZRANGE', source, 0, 0)[1]
  if position then
    show(answer, position, redis.call('HGET', messages, position), tracks_of({position})[1])
    break
  end
end
return answer
