-- What becomes of messages that fail.
-- ARGV: 5 until when the sweep is known to come to the queue ('' where it is not), 6 most claims, 7 most
--       failures, 8 the dead-letter queue's tag ('' for none), 9 ttl of letters in ms ('' for what
--       remains), 10 the source's name, 11 the delays after failures (6 bytes each), 12 jitter
-- include: life
-- The driver registered the queue after a call noted this instant. As long as it is to come, and what is
-- noted is no earlier one, each visit of the sweep is followed by another.
local armed_until = tonumber(ARGV[5])
local is_armed = armed_until and armed_until > now and tonumber(life[6] or 0) >= armed_until
local most_claims, most_failures = tonumber(ARGV[6]), tonumber(ARGV[7])
local target, letter_ttl, source_name = ARGV[8], tonumber(ARGV[9]), ARGV[10]
local delays, jitter = ARGV[11], tonumber(ARGV[12])
if jitter then
  -- Redis starts every script with the same random numbers.
  math.randomseed((clock[1] * 1000000 + clock[2]) % 2147483647)
end

-- Why a message that has just failed is a dead letter; nil when it is none.
local function spent_by(claim_count, failures)
  if target == '' then
    return nil
  end
  return failures >= most_failures and 'max_failures' or claim_count >= most_claims and 'max_claims' or nil
end

-- How long a message waits after its n-th failure.
local function backoff(failures)
  if delays == '' then
    return 0
  end
  local delay = struct.unpack('>I6', delays, 6 * math.min(failures, #delays / 6) - 5)
  if jitter then
    delay = math.floor(delay * (1 + jitter * (2 * math.random() - 1)) + 0.5)
  end
  return delay
end

-- Note that letters will come: no sweep forgets the queue before the driver has registered it, so
-- that a crash in between loses nothing.
local function arm()
  redis.call('HSET', state, 'armed', now + ARMED)
  keep(now + 60000, {})
end
