-- Parked messages: given back with a delay that is not over; they are in `held` too, for listing.
-- include: claims attempts
local MARGIN = 60000
local first_return

-- Make ready what has waited long enough, up to `budget`. Answers how many, and whether none is left.
local function unpark(budget)
  if not life[5] then
    return 0, true
  end
  local positions = redis.call('ZRANGEBYSCORE', parked, '-inf', now, 'LIMIT', 0, budget)
  if #positions > 0 then
    apply('ZREM', parked, positions)
    apply('ZREM', held, positions)
    make_ready(positions)
  end
  return #positions, #positions < budget
end

-- Make ready, or park, messages whose hand-out has ended: rows of position, track and ending. `from` is the
-- index they are in, held or lapsed; their tracks are stored with the other `changes` (positions and
-- tracks). `first_return` is when the first of those that were parked is ready.
local function give_back(rows, from, changes)
  local back, waiting_on, ends, raised, latest = {}, {}, {}, {}, now
  for _, row in ipairs(rows) do
    local track, until_when = ended_track(row), row.ending.until_when
    if until_when then
      local expires = struct.unpack('>I6', track)
      if expires < until_when + MARGIN then
        expires = until_when + MARGIN
        track = struct.pack('>I6I5', expires, expires - now) .. track:sub(12)
        raised[#raised + 1] = score_of(expires)
        raised[#raised + 1] = row.position
      end
      latest = math.max(latest, expires)
      waiting_on[#waiting_on + 1] = row.position
      ends[#ends + 1] = score_of(until_when)
      first_return = math.min(first_return or until_when, until_when)
    else
      back[#back + 1] = row.position
    end
    changes[#changes + 1] = row.position
    changes[#changes + 1] = track
  end
  apply('HSET', tracks, changes)
  apply('ZREM', from, back)
  make_ready(back)
  if #waiting_on > 0 then
    if from ~= held then
      apply('ZREM', from, waiting_on)
      add_to(held, waiting_on)
      keep(latest, {held})
    end
    add_to(parked, waiting_on, ends)
    keep(latest, {parked})
    if #raised > 0 then -- else the claim has let the other keys live as long
      apply('ZADD', expiry, raised)
      keep(latest, {held, tracks, attempts, ids})
    end
    note_returns()
    hasten(first_return)
  end
end
