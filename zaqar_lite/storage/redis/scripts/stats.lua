-- Count live messages by state; find the oldest and the newest.
-- ARGV: 1 offset
-- Answers: 'ok', now, ready, delayed, claimed; position, record, track, '1' if held, of both.
-- include: census
local answer = {'ok', now,
  redis.call('ZCARD', ready) + redis.call('ZCARD', aside),
  redis.call('ZCARD', waiting), redis.call('ZCARD', held)}
for _, rank in ipairs({0, -1}) do
  local best, is_held_there
  for _, source in ipairs(sources) do
    local position = redis.call('ZRANGE', source, rank, rank)[1]
    if position then
      local number = struct.unpack('>I8', position)
      if not best or (rank == 0 and number < best) or (rank == -1 and number > best) then
        best, is_held_there = number, source == held
      end
    end
  end
  if best then
    local position, at = struct.pack('>I8', best), #answer
    answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = position,
      redis.call('HGET', messages, position), redis.call('HGET', tracks, position) or '',
      is_held_there and '1' or ''
  end
end
return answer
