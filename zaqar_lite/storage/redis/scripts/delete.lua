-- Delete messages, all or none.
-- ARGV: 1 offset, 2 'any' (regardless of claims) or 'held', 3 number of claim ids n,
--       4..3+n claim ids, 4+n.. ids (16 bytes each)
-- Answers: 'ok'; or 'refused' and, for each that is, its id and 'claimed' or 'free'.
-- include: whole claims delays forget locate
-- rarely: lift only leave_delayed leave_groups
local count = tonumber(ARGV[3])
local named = {}
for i = 4, 3 + count do
  named[ARGV[i]] = true
end
local found = locate_live(arguments_from(4 + count))
local positions, free, claimed, delayed, refused = found.positions, {}, {}, {}, {'refused'}
for i, position in ipairs(positions) do
  local track = found.tracks[i]
  if struct.unpack('>I6', found.records[i], 18) > 0 then
    delayed[#delayed + 1] = position
  end
  if track then
    claimed[#claimed + 1] = position
  end
  if not track or not has_flag(track, HELD) then
    free[#free + 1] = position
  end
  if ARGV[2] == 'held' then
    local reason = false
    if is_held(track) then
      reason = not named[track:sub(16, 31)] and 'claimed'
    else
      reason = count > 0 and 'free'
    end
    if reason then
      refused[#refused + 1] = found.ids[i]
      refused[#refused + 1] = reason
    end
  end
end
if #refused > 1 then
  return refused
end
leave_ready(free)
leave_held(claimed)
leave_claims(positions, found.tracks)
if #delayed > 0 then
  leave_delayed(delayed)
end
forget(positions, found.tracks)
return {'ok'}
