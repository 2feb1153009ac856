-- How long keys live, when the sweep must come, and which position is next.
-- include: state visit
-- For so long (ms) a queue that was registered because letters leave it is visited again: outbox.py.
local ARMED = 5000

-- Let keys, which this call has `written`, live until the horizon of the queue, which is never before
-- any deadline in it. It moves in steps of an hour, so that it is rarely written, and takes the
-- keys along that every message is in; the minute covers clocks that differ.
local function keep(deadline, written)
  local horizon, moved = tonumber(life[2] or 0), false
  if math.max(deadline, now) > horizon then
    horizon = math.max(deadline, now) + 3600000
    life[2] = horizon
    redis.call('HSET', state, 'horizon', horizon)
    moved = true
  end
  if not moved and #written == 0 then
    return
  end
  local at = string.format('%.0f', math.ceil((horizon - offset) / 1000) + 60)
  if moved then
    for _, key in ipairs({state, messages, expiry, life[8] and groups or nil}) do
      redis.call('EXPIREAT', key, at)
    end
  end
  for _, key in ipairs(written) do
    redis.call('EXPIREAT', key, at)
  end
end

-- Note that messages of this queue wait for their return: parked, or lapsed and not ended yet.
-- Queues without any are spared the look.
local function note_returns()
  if not life[5] then
    redis.call('HSET', state, 'returns', 1)
    life[5] = '1'
  end
end

-- Note that something is due at `at`, and register it for the sweep where that is in this server (`visits`).
-- Else answers the instant that the caller must register; 0 when an earlier one is. A registration that is
-- a minute overdue is taken for lost (its process died before it wrote it) and made anew.
local function schedule(at)
  local coming = tonumber(life[3] or 0)
  if coming == 0 or at < coming or coming < now - 60000 then
    life[3] = at
    redis.call('HSET', state, 'due', at)
    if not visits then
      return at
    end
    note_visit(state:match('{(.*)}'), at)
  end
  return 0
end

-- Let the sweep look soon whether the outbox was emptied: its process may end before it has done so.
local function look_after_outbox()
  if visits then
    schedule(now + 2000)
  end
end

-- Take `count` positions: the first of them. Never one that was given before, even where the
-- counter was lost.
local function take_positions(count)
  local first = math.max(tonumber(life[1] or 0) + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
  life[1] = first + count - 1
  redis.call('HSET', state, 'last', life[1])
  return first
end
