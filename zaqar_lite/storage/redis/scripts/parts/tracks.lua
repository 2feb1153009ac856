-- The track of a message: what changes of it (codec.py has the layout).
-- include: keys now chunks
local RELEASED, FAILED, LAPSED, DEAD = 1, 2, 3, 4
local HELD, PARKED, REMEMBERED = 8, 16, 32
local WAITS = 64 -- of a letter on its way: it is delayed where it comes to

-- A track of the earlier version in today's layout.
local function lifted(track, flags, until_when, claimed_at)
  local length = struct.unpack('>H', track, 32)
  return track:sub(1, 31) .. struct.pack('>HBI6I6I4', 32768 + length, flags, until_when, claimed_at, 0)
    .. track:sub(34)
end

-- Stored at once, so that the claim's end is not lost with the claim.
local function lift(position, track)
  local id = track:sub(16, 31)
  local deadline, claim = redis.call('ZSCORE', leases, id), redis.call('HGET', claims, id)
  if deadline and claim and redis.call('ZSCORE', held, position) then
    track = lifted(track, HELD, tonumber(deadline), struct.unpack('>I6', claim, 6))
  else
    track = lifted(track, 0, 0, 0)
  end
  redis.call('HSET', tracks, position, track)
  return track
end

-- The tracks of positions, in their order; false where there is none.
local function tracks_of(positions)
  local its = gather(tracks, positions)
  for i, position in ipairs(positions) do
    if its[i] and its[i]:byte(32) < 128 then
      its[i] = lift(position, its[i])
    end
  end
  return its
end

local function until_of(track)
  return (struct.unpack('>I6', track, 35))
end

local function has_flag(track, flag)
  return bit.band(track:byte(34), flag) ~= 0
end

-- Whether a live claim holds the message. Decided by the lease's end, noticed or not.
local function is_held(track)
  return track and has_flag(track, HELD) and until_of(track) > now
end

local function origin_length(track)
  return struct.unpack('>H', track, 32) - 32768
end
