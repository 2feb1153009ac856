-- Answer 'busy' while a post in parts is not whole: it is committed, so nothing may be read or stored
-- before the rest of it is there. The driver has it finished (publish.lua) and comes again.
-- include: life
if life[7] then
  return {'busy'}
end
