-- The tables of memory:// (in RAM) and embedded:// (the file zaqar.sqlite3).
--
-- Instants are milliseconds since 1970, durations milliseconds. Ids of messages and claims are 16
-- bytes (32 hex digits for clients). A number names a queue, or what a queue holds, and is never
-- used twice; positions are unique over all queues.

-- One row. What a counter gives is never given again, also after a restart; `instant` is the last
-- one that this store has seen, so that a clock set back re-opens no lease.
CREATE TABLE counter (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  number INTEGER NOT NULL,
  position INTEGER NOT NULL,
  version INTEGER NOT NULL,
  instant INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 0, 0, 0, 0);

-- A queue has a row while it has a record (version > 0), messages, idempotency keys or history.
-- `content` is the number of what it holds now: after a purge another one, so that the old
-- messages are garbage at once. The counts, and the bytes of all bodies, are kept in the same
-- transaction as what they count; `sweep_at` is when the sweep finds something to do, at the
-- earliest; null: never.
CREATE TABLE queue (
  number INTEGER PRIMARY KEY,
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  version INTEGER NOT NULL DEFAULT 0,
  metadata TEXT NOT NULL DEFAULT '{}',
  exposing INTEGER NOT NULL DEFAULT 0,
  has_filter INTEGER NOT NULL DEFAULT 0,
  dead_letter_queue TEXT,
  content INTEGER NOT NULL,
  ready INTEGER NOT NULL DEFAULT 0,
  delayed INTEGER NOT NULL DEFAULT 0,
  leased INTEGER NOT NULL DEFAULT 0,
  parked INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL DEFAULT 0,
  keys INTEGER NOT NULL DEFAULT 0,
  ended INTEGER NOT NULL DEFAULT 0,
  sweep_at INTEGER,
  UNIQUE (project, name)
) STRICT;
CREATE INDEX recorded ON queue (project, name) WHERE version > 0;
CREATE INDEX dead_letter_source ON queue (project, dead_letter_queue, name)
  WHERE dead_letter_queue IS NOT NULL;
CREATE INDEX filtered ON queue (project, name) WHERE has_filter = 1;
CREATE INDEX exposing ON queue (number) WHERE exposing = 1;
CREATE INDEX sweeping ON queue (sweep_at) WHERE sweep_at IS NOT NULL;
-- `recorded` again, as a count for each project, so that a bound on queues costs one look.
CREATE TABLE project (
  name TEXT PRIMARY KEY,
  queues INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

-- A message in a queue. `queue` is the queue's `content`. The states:
--   0 ready    1 delayed until `due`    2 leased until `until`    3 parked until `until`
-- `due` stays after the delay is over (the field `d`; 0: never delayed). `claim` is the claim that
-- holds the message, or held it last, and `last_end` how that hand-out ended (null: it has not,
-- or its lease lapsed and nothing has met that yet). `moved` is 1 where the id does not begin with
-- the position, `has_attempts` where it has a row in `attempts`. `body` names the body's row, which
-- has `size` bytes; with `is_shared` other entries may name it too.
CREATE TABLE entry (
  queue INTEGER NOT NULL,
  position INTEGER NOT NULL,
  id BLOB NOT NULL,
  state INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  due INTEGER NOT NULL,
  until INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  ttl INTEGER NOT NULL,
  created INTEGER NOT NULL,
  claims INTEGER NOT NULL,
  failures INTEGER NOT NULL,
  claim BLOB,
  claimed_at INTEGER NOT NULL,
  last_end INTEGER,
  body INTEGER NOT NULL,
  is_shared INTEGER NOT NULL,
  moved INTEGER NOT NULL,
  has_attempts INTEGER NOT NULL,
  client TEXT NOT NULL,
  headers TEXT,
  message_group BLOB,
  origin TEXT,
  size INTEGER NOT NULL,
  PRIMARY KEY (queue, position)
) WITHOUT ROWID, STRICT;
-- SQLite uses a partial index only where a query repeats its condition as it stands here; queries
-- name the index (INDEXED BY), so that a slow plan is an error.
CREATE INDEX ready ON entry (queue, priority, position) WHERE state = 0;
CREATE INDEX delayed ON entry (queue, due) WHERE state = 1;
CREATE INDEX parked ON entry (queue, until) WHERE state = 3;
CREATE INDEX expiring ON entry (queue, expires);
CREATE INDEX moved ON entry (queue, id) WHERE moved = 1;
CREATE INDEX grouped ON entry (queue, message_group, position) WHERE message_group IS NOT NULL;

-- Bodies are apart, so that claiming rewrites none. `holders` counts the entries that name it, and
-- the copies that a large post under way has still to bring.
CREATE TABLE body (
  number INTEGER PRIMARY KEY,
  holders INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;

-- The ended hand-outs of a message as JSON: the first and the last ones (domain/attempts.py), and
-- the Client-IDs of the last 64, for the history.
CREATE TABLE attempts (
  id BLOB PRIMARY KEY,
  attempts BLOB NOT NULL,
  clients TEXT NOT NULL
) WITHOUT ROWID, STRICT;

-- A claim that holds `held` messages; `positions` are those of all that it ever held, 8 bytes
-- each. No lease of it ends before `ends`; `is_even` is 1 while all of them end then.
CREATE TABLE claim (
  id BLOB PRIMARY KEY,
  queue INTEGER NOT NULL,
  client TEXT NOT NULL,
  started INTEGER NOT NULL,
  ttl INTEGER NOT NULL,
  ends INTEGER NOT NULL,
  is_even INTEGER NOT NULL,
  held INTEGER NOT NULL,
  positions BLOB NOT NULL
) WITHOUT ROWID, STRICT;
CREATE INDEX lapsing ON claim (queue, ends);

-- Idempotency keys. `queue` is the queue's number: a purge keeps them. `kind` is 0 for the key of
-- a message and 1 for that of a whole post; `ids` are what the first post was answered with.
CREATE TABLE idempotency (
  queue INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  key TEXT NOT NULL,
  ends INTEGER NOT NULL,
  digest BLOB,
  ids BLOB NOT NULL,
  PRIMARY KEY (queue, kind, key)
) WITHOUT ROWID, STRICT;
CREATE INDEX ending_key ON idempotency (queue, ends);

-- Large posts under way, in parts (posting.py): part 0, the last to be stored, says what is posted
-- where, the others have the messages as MessagePack. Each part that has entered the queue has a row
-- -1, -2 and so on with the ids of its messages; the copies enter last, in parts that have no rows
-- but these. Who opens the store finishes them, or forgets those without part 0.
CREATE TABLE post (
  number INTEGER NOT NULL,
  part INTEGER NOT NULL,
  ids BLOB,
  content BLOB,
  PRIMARY KEY (number, part)
) WITHOUT ROWID, STRICT;

-- Messages that are over: `state` is done or failed, `number` counts up. `queue` is the queue's
-- number, `consumers` a JSON list of Client-IDs.
CREATE TABLE history (
  queue INTEGER NOT NULL,
  state TEXT NOT NULL,
  number INTEGER NOT NULL,
  id BLOB NOT NULL,
  ended INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  consumers TEXT NOT NULL,
  PRIMARY KEY (queue, state, number)
) WITHOUT ROWID, STRICT;

-- Whatever is neither a queue nor a message.
CREATE TABLE record (
  kind TEXT NOT NULL,
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  value BLOB NOT NULL,
  version INTEGER NOT NULL,
  ends INTEGER,
  PRIMARY KEY (kind, project, name)
) WITHOUT ROWID, STRICT;
CREATE INDEX ending_record ON record (ends) WHERE ends IS NOT NULL;

-- Numbers whose queue was purged or dropped: the sweep deletes what they hold, in bounded steps.
CREATE TABLE garbage (
  number INTEGER PRIMARY KEY
) STRICT;
