-- Queue records, the indexes over queues, rates, and the sweep. Of the keys over all queues of a project:
-- names: zset, score 0, the project's queues; members removed by reindexing
-- rates: hash, bucket -> tokens and instant (ms); expires once all are full
-- and of those over all queues:
-- visits: zset, queue by the instant of its next visit; members removed by reschedule
-- intents: zset, intent by the instant it was noted; members removed when done or healed

-- Create a queue's record unless it exists.
-- ARGV: 1 offset, 2 metadata (JSON)
-- Answers: 'created' or 'exists', version, metadata, '1' if exposing.
register('create_queue', 'queue', UNLESS_FULL, function()
  local record = call('HMGET', queue, 'version', 'metadata', 'exposing')
  if record[1] then
    return {'exists', unpack(record)}
  end
  local version = score_of(clock[1] * 1000000 + clock[2] + offset * 1000)
  call('HSET', queue, 'version', version, 'metadata', ARGV[2], 'exposing', '')
  return {'created', version, ARGV[2], ''}
end)

-- Replace a queue's record at its version.
-- ARGV: 1 offset, 2 version, 3 metadata (JSON), 4 '1' if exposing
-- Answers: 'ok' and the new version; or 'changed'.
register('update_queue', 'queue', UNLESS_FULL, function()
  if (call('HGET', queue, 'version') or '0') ~= ARGV[2] then
    return {'changed'}
  end
  local after = math.max(tonumber(ARGV[2]) + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
  after = score_of(after)
  call('HSET', queue, 'version', after, 'metadata', ARGV[3], 'exposing', ARGV[4])
  return {'ok', after}
end)

-- Delete a queue's record at its version.
-- ARGV: 1 offset (unused), 2 version
-- Answers: 'ok', also when there was none; or 'changed'.
register('delete_queue', 'queue', ALWAYS, function()
  local version = call('HGET', queue, 'version')
  if version and version ~= ARGV[2] then
    return {'changed'}
  end
  call('UNLINK', queue)
  return {'ok'}
end)

-- Put a name into its project's list, unless the list is full.
-- ARGV: 1 offset, 2 name, 3 most names
register('enlist', 'project', UNLESS_FULL, function()
  if not call('ZSCORE', names, ARGV[2]) then
    if call('ZCARD', names) >= tonumber(ARGV[3]) then
      return {'full'}
    end
    call('ZADD', names, 0, ARGV[2])
  end
  return {'ok'}
end)

-- Note that a queue's record is about to change. After a crash the sweep finds the note and repairs
-- the indexes of the record.
-- ARGV: 1 offset, 2 the intent
register('intend', 'everywhere', ALWAYS, function()
  call('ZADD', intents, now, ARGV[2])
  return {'ok'}
end)

-- Find the notes of changes that were begun half a minute ago or earlier, so a crash cut them short.
-- ARGV: 1 offset, 2 how many at most
register('old_intents', 'everywhere', ALWAYS, function()
  return call('ZRANGEBYSCORE', intents, '-inf', now - 30000, 'LIMIT', 0, tonumber(ARGV[2]))
end)

-- Let the sweep visit a queue.
-- ARGV: 1 offset, 2 tag of the queue, 3 instant (ms)
register('register', 'everywhere', ALWAYS, function()
  note_visit(ARGV[2], tonumber(ARGV[3]))
  return {'ok'}
end)

-- Find queues that must be visited now.
-- ARGV: 1 offset, 2 how many at most
-- Answers: now; tags and scores.
register('visits', 'everywhere', ALWAYS, function()
  return {now, call('ZRANGEBYSCORE', visits, '-inf', now, 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))}
end)

-- After a visit, note the next visit or forget the queue. Do neither if the queue was registered
-- again during the visit.
-- ARGV: 1 offset, 2 tag of the queue, 3 the score that was seen, 4 the next instant (ms), 0 for none
register('reschedule', 'everywhere', ALWAYS, function()
  local score = call('ZSCORE', visits, ARGV[2])
  if score and tonumber(score) == tonumber(ARGV[3]) then
    if ARGV[4] == '0' then
      call('ZREM', visits, ARGV[2])
    else
      call('ZADD', visits, ARGV[4], ARGV[2])
    end
  end
  return {'ok'}
end)

-- Tidy up one queue, and find when it must be visited next.
-- ARGV: 1 offset, 4 about how many entries; 5 to 12: policy
-- Answers: 'ok'; how many messages expired, keys ended, messages were promoted and lapsed; length of the outbox,
-- next instant or 0.
operation('sweep', ALWAYS, {whole = true}, function()
  read_policy()
  visits, is_armed = nil, true -- the queue stays registered until this visit is over
  local budget = math.min(tonumber(ARGV[4]), 100)
  local expired, promoted = expire(budget), 0
  local noticed = lapse(budget - expired)
  local ended, _, moved = end_lapsed(budget)
  if expired + noticed < budget then
    promoted = promote(budget - expired - noticed) + unpark(budget - expired - noticed)
  end
  local old = call('ZRANGEBYSCORE', forgets, '-inf', now, 'LIMIT', 0, budget)
  apply('ZREM', forgets, old)
  apply('HDEL', keys, old)
  local following = 0
  local function consider(instant)
    instant = tonumber(instant or 0)
    if instant > 0 and (following == 0 or instant < following) then
      following = instant
    end
  end
  for _, key in ipairs({expiry, leases, due, parked, forgets}) do
    consider(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
  end
  local armed = tonumber(life[N.armed] or 0)
  if armed > now then
    consider(armed)
  end
  if call('EXISTS', lapsed) == 1 then
    consider(now)
  end
  local waiting_letters = call('LLEN', outbox)
  if waiting_letters > 0 then
    consider(now + 5000)
  end
  if following > 0 then
    note('due', score_of(following))
    keep(following)
  else
    call('HDEL', state, 'due')
  end
  soonest = math.huge -- `following` is no later
  return {'ok', expired, #old, promoted, ended - moved, waiting_letters, following}
end)

-- Take tokens from buckets of a project, which hold some seconds' worth and may go into debt.
-- ARGV: 1 offset, 2 seconds, then for each bucket: name, tokens a second, tokens spent
-- Answers: 'ok', and what each bucket has left.
register('spend', 'project', ALWAYS, function()
  local answer, full = {'ok'}, now
  for i = 3, #ARGV, 3 do
    local rate = tonumber(ARGV[i + 1])
    local most = math.max(rate * tonumber(ARGV[2]), 1)
    local left = most
    local stored = call('HGET', rates, ARGV[i])
    if stored then
      local tokens, at = string.match(stored, '(%S+) (%S+)')
      left = math.min(most, tonumber(tokens) + math.max(now - tonumber(at), 0) / 1000 * rate)
    end
    left = left - tonumber(ARGV[i + 2])
    call('HSET', rates, ARGV[i], string.format('%.3f %.0f', left, now))
    full = math.max(full, now + (most - left) / rate * 1000)
    answer[#answer + 1] = string.format('%.3f', left)
  end
  call('PEXPIREAT', rates, score_of(full - offset + 60000))
  return answer
end)
