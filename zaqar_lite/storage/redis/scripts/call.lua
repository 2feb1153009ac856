-- One call of an operation: its keys, its instant, and what is noted of its queue.
--
-- Every file of this folder is a part of one library of functions (scripts/__init__.py), so that a function
-- may be used by all that comes behind it. The names of keys are those of keys.py. Positions are 8 bytes, an
-- instant is 6 bytes, both big-endian. Commands get texts: Redis writes out each number that it is given,
-- which takes as long as HLEN.
--
-- The keys of a queue. What is said to expire does so by `finish`, never before a deadline in it.
-- queue: hash, the queue's record: version, metadata (JSON), exposing; it does not expire
-- state: hash; last (position), horizon, due, armed (ms), returns, grouped (flags), part (the next
--     one of a post in parts), bytes (of all bodies); expires
-- messages: hash, position -> record: one packed string for each message (layout.py); expires
-- bodies: hash, position -> body, of those that are large (join_body); expires
-- tracks: hash, position -> track: what changes of a message once it was claimed or moved; expires
-- attempts: hash, position -> hand-outs that have ended, of messages that have some; expires
-- expiry: zset, every position by its deadline (ms); expires
-- ready: zset, score 0, ready positions; expires
-- due: zset, delayed positions by d (ms); expires
-- waiting: zset, score 0, the same positions, for listing; expires
-- held: zset, score 0, positions of claimed and of parked messages; expires
-- parked: zset, those that are parked, by the end of their wait (ms); expires
-- lapsed: zset, score 0, positions whose lease has lapsed and is not ended yet; expires
-- claims: hash, claim id -> ttl, start, held positions; expires
-- leases: zset, claim id by an instant before which no lease of its messages ends; expires
-- ids: hash, id -> position of each dead letter, whose id holds another; expires
-- groups: zset, score 0, length of the group (1 byte), group, position; expires
-- keys: hash, 'b' or 'm' and idempotency key -> entry (codec.py); expires
-- forgets: zset, the same fields by deadline; expires
-- outbox: list, letters and outbox messages on their way to other queues; expires
-- brought: with the source's tag behind it: the number of the last letter that came from there; expires a day after
--     it. Without: zset, source by that number, as 0.2.0 wrote it
-- staged: hash, '0' -> instant and first position, number -> part of a post; expires
-- readiness: a channel, no key: tells how many messages became ready, or 0: look soon
-- visits: zset, every queue by the instant of the sweep's next visit. Operations on a queue have it only where
--     it is in the same server.
local ALWAYS, UNLESS_FULL = {'allow-oom'}, {}
local ARGV -- of this call; the first is the offset of the clock that tests move (ms)
local offset, clock, now -- now: milliseconds since 1970 by this server's clock, plus the offset
local N = {last = 1, horizon = 2, due = 3, returns = 4, armed = 5, part = 6, grouped = 7, bytes = 8}
local life -- what is noted of the queue, by the places in N of the names in `state`
local noted, written, raised, latest, soonest, first_ready -- what this call changes, for `finish`
local middles -- parts of dead letters that this call has made

-- Let Redis run `act` by its name: `ALWAYS`, or `UNLESS_FULL` where it adds what takes room.
local function register(name, family, flags, act)
  local take_keys = take_keys_of[family]
  redis.register_function({function_name = PREFIX .. name, flags = flags, callback = function(given, arguments)
    if not call then
      take_built_in()
    end
    take_keys(given)
    ARGV, clock = arguments, call('TIME')
    offset = tonumber(ARGV[1])
    now = clock[1] * 1000 + math.floor(clock[2] / 1000) + offset
    return act()
  end})
end

-- Note something of the queue, as a text.
local function note(name, value)
  if life[N[name]] ~= value then
    life[N[name]] = value
    noted[#noted + 1], noted[#noted + 2] = name, value
  end
end

-- Call `command` on a key with all values, unless there is none. No step has more than Lua's stack takes (8,000).
local function apply(command, key, values)
  return #values > 0 and call(command, key, unpack(values))
end

-- The same where it adds to what is there.
local function put(command, key, values)
  if #values > 0 then
    written[key] = true
    return call(command, key, unpack(values))
  end
end

-- Let what was written live until an instant.
local function keep(at)
  latest = math.max(latest, at)
end

-- The same, and let the sweep come then.
local function visit(at)
  keep(at)
  soonest = math.min(soonest, at)
end

-- The same where a message becomes ready then.
local function ready_at(at)
  visit(at)
  first_ready = math.min(first_ready, at)
end

-- An instant as the text of a score.
local function score_of(instant)
  return string.format('%.0f', instant)
end

-- Let a message expire at another instant. Versions before this let some keys end before the horizon.
local function raise(position, expires)
  raised[#raised + 1], raised[#raised + 2] = score_of(expires), position
  keep(expires)
  written[ids], written[attempts], written[held], written[leases] = true, true, true, true
end

-- Let the sweep visit a queue at an instant. The score changes in any case, so that a sweep that has looked
-- at the queue before notices (see reschedule).
local function note_visit(tag, at)
  local old = call('ZSCORE', visits, tag)
  if old then
    at = math.min(at, tonumber(old) - 1)
  end
  call('ZADD', visits, at, tag)
end

-- Note that something is due at `at`, and register it for the sweep where that is in this server (`visits`).
-- Else answers the instant that the caller must register; 0 when an earlier one is. A registration that is
-- a minute overdue is taken for lost (its process died before it wrote it) and made anew.
local function schedule(at)
  local coming = tonumber(life[N.due] or 0)
  if coming == 0 or at < coming or coming < now - 60000 then
    note('due', score_of(at))
    if not visits then
      return at
    end
    note_visit(state:match('{(.*)}'), at)
  end
  return 0
end

-- Write what this call has noted, and let the keys that it has written to live until the horizon of the queue, which
-- is never before any deadline in it. It moves in steps of an hour, so that it is rarely written, and takes all keys
-- along; the minute covers clocks that differ. Who waits looks again every thirty seconds (readiness.py), a little
-- sooner or later: what is ready later than that they find themselves. Answers the instant to register.
local function finish()
  put('ZADD', expiry, raised)
  local instant = soonest < math.huge and schedule(soonest) or 0
  if first_ready < now + 37000 then
    call('SPUBLISH', readiness, 0)
  end
  if not next(written) and #noted == 0 then
    return instant
  end
  local horizon = tonumber(life[N.horizon] or 0)
  if math.max(latest, now) > horizon then
    horizon = math.max(latest, now) + 3600000
    note('horizon', score_of(horizon))
    for _, key in ipairs({state, messages, bodies, expiry, ready, due, waiting, tracks, held, claims, leases, lapsed,
      parked, attempts, ids, groups, outbox, keys, forgets, staged}) do
      written[key] = true
    end
  end
  apply('HSET', state, noted)
  local at = next(written) and score_of(math.ceil((horizon - offset) / 1000) + 60)
  for key in pairs(written) do
    call('EXPIREAT', key, at)
  end
  return instant
end

-- The same as `register` for an operation on a queue. A post in parts is committed, so nothing may be read or stored
-- before the rest of it is there: what waits for `whole` answers 'busy' until then; the driver has the post finished
-- (publish) and comes again. 'changed' is the answer where the queue's record is not at the `version` that the
-- caller decided by (ARGV[2]). Behind each answer is an instant at which the driver must register the queue, or 0.
local function operation(name, flags, checks, act)
  register(name, 'queue', flags, function()
    middles, noted, written, raised, latest, soonest, first_ready = {}, {}, {}, {}, 0, math.huge, math.huge
    life = call('HMGET', state, 'last', 'horizon', 'due', 'returns', 'armed', 'part', 'grouped', 'bytes')
    if life[N.part] and checks.whole then
      return {'busy', 0}
    end
    if checks.version and ARGV[2] ~= '' and (call('HGET', queue, 'version') or '0') ~= ARGV[2] then
      return {'changed', 0}
    end
    local answer = act()
    answer[#answer + 1] = finish()
    return answer
  end)
end

-- How long keys live, when the sweep must come, and which position is next.
-- For so long (ms) a queue that was registered because letters leave it is visited again: outbox.py.
local ARMED = 5000

-- Note that letters will come: no sweep forgets the queue before the driver has registered it, so
-- that a crash in between loses nothing.
local function arm()
  note('armed', score_of(now + ARMED))
  keep(now + 60000)
end

-- Let the sweep look soon whether the outbox was emptied: its process may end before it has done so. The numbers
-- of letters go on from the last one, whatever the clock does, as long as their target remembers it: a day.
local function look_after_outbox()
  if not life[N.armed] then
    note('armed', '0')
  end
  keep(now + 86400000)
  if visits then
    visit(now + 2000)
  end
end

-- Take `count` positions: the first of them. Never one that was given before, even where the
-- counter was lost.
local function take_positions(count)
  local first = math.max(tonumber(life[N.last] or 0) + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
  note('last', score_of(first + count - 1))
  return first
end

-- Note that the bodies of the queue have so many bytes more. Those that a version stored that counted none may
-- leave, so there are never less than none; and none when the queue is empty.
local function add_bytes(count)
  if count ~= 0 then
    note('bytes', score_of(math.max(0, tonumber(life[N.bytes] or 0) + count)))
  end
end

-- The values of a hash's fields, in the order of the fields; false where there is none.
local function gather(key, fields)
  return #fields > 0 and call('HMGET', key, unpack(fields)) or {}
end

-- The arguments of the call from one on to another.
local function arguments(first, last)
  local found = {}
  for i = first, last do
    found[i - first + 1] = ARGV[i]
  end
  return found
end
