-- Remove all messages and claims of a queue.
-- include: keys
local function empty()
  redis.call('UNLINK', messages, tracks, ready, ranked, aside, due, waiting, held, claims, leases, lapsed, parked,
    attempts, expiry, ids, groups)
end
