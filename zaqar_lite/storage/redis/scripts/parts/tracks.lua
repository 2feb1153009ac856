-- The track of a message: what changes of it (codec.py has the layout).
-- include: keys now chunks
local RELEASED, FAILED, LAPSED, DEAD = 1, 2, 3, 4
local HELD, PARKED, REMEMBERED = 8, 16, 32
local WAITS = 64 -- of a letter on its way: it is delayed where it comes to

-- The tracks of positions, in their order; false where there is none.
local function tracks_of(positions)
  return gather(tracks, positions)
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
