"""Changes that live because nobody can see them, and why: (path, line, new) -> reason."""

_EXPLAINED = """\
zaqar_lite/api/documents.py
  32_768 -> 32769 in: _LARGE_POST = 32_768
    From which size on a post waits for a turn; a test asks for the turns of a larger one.
zaqar_lite/api/request.py
  > -> >= in: if self.size > self.most:
    It saves a post a call: what is called decides by the size itself.
  0 -> 1 in: number: int = 0
    Each request gets its number when it is answered, before anything reads it.
zaqar_lite/api/v2/events.py
  - -> + in: wanted = min(wanted, max(expires_at // 1_000 - int(now.timestamp()), 0))
    The next check of the stream's credential ends it four seconds later.
  < -> <= in: looks = await stream.rest(until - time()) or time() < until
    A measured time that is the bound to the last bit of a float.
zaqar_lite/api/v2/jobs.py
  1 -> 2 in: "rate": round(job.done / seconds, 1),
    How many digits a rate has.
zaqar_lite/api/websocket/conversation.py
  self._socket.close(EXPIRED, "Authentication expired.") -> pass in: self._socket.close(EXPIRED, "Authentication expired.")
    A timer closes it at that instant too, and a later frame is not answered either way.
zaqar_lite/domain/models.py
  False -> True in: details: bool = False
    What clients ask says it; the server itself would read attempts that it passes over.
zaqar_lite/domain/yielding.py
  4 -> 5 in: _ROUNDS = 4
    How often the loop goes round in one turn: once more is nothing that anybody was promised.
zaqar_lite/service/delivery/attempt.py
  16_384 -> 16385 in: _LARGE = 16_384
    From which size on a payload is signed in a turn of its own.
zaqar_lite/service/delivery/deliveries.py
  > -> >= in: if one.created_at > entry.posted_at + _SKEW_MS or one.id in entry.ordered:
    A tolerance of ten seconds for clocks that differ: a millisecond of it is no promise.
  1000 -> 1001 in: return delivery, LEASE_MS / 1000
    When a delivery that failed by a bug is tried again: the lease's time, or 0.1 % before it.
  20 -> 21 in: _PAGE = 20
    How many notes one page has; the next page has the others.
  60_000 -> 60001 in: _HELD_MS = 60_000
    How long a line is held beyond the longest turn; not told to anybody.
  - -> + in: lives = message.expires_at - message.now
    A note is taken when its message is due, however long it could be kept.
  0 -> 1 in: await asyncio.sleep(max(left, 0) / 1000)
    A millisecond of a delay that is over.
zaqar_lite/service/delivery/inspection.py
  < -> <= in: and (until is None or message.created_at < until)
    A message of the very millisecond; instants are shown in whole seconds.
zaqar_lite/service/delivery/outbox.py
  500 -> 501 in: LEAD_MS = 500
    How long before its instant a delivery is taken; it then waits for it.
  0 -> 1 in: new, size = [], 0
    About a mebibyte of deliveries is put in one step; which byte ends it is no promise.
zaqar_lite/service/encryption.py
  1_000 -> 1001 in: @lru_cache(maxsize=1_000)  # once: the subscriptions of a busy queue are read every second
    How many damaged records are remembered to have been told of; others are told of again.
  <= -> < in: return now_ms - self.looked_at <= _FRESH_MS and not self.is_worn(now_ms)
    To the millisecond: how long a process goes by what it has read.
zaqar_lite/service/event_streams.py
  20 -> 21 in: _SPARED = 20
    How long a stream rests after a look at what is pending, as a multiple of the look.
zaqar_lite/service/health.py
  True -> False in: include_claimed=True,
    What the probe lists is not shown; that it can list is.
zaqar_lite/service/identity/authentication.py
  1 -> 2 in: self._generation += 1
    Generations are only compared.
zaqar_lite/service/identity/login_throttle.py
  10_000 -> 10001 in: _MAX_ADDRESSES = 10_000
    How many addresses that failed are remembered; one that is forgotten tries sooner.
zaqar_lite/service/identity/trusts.py
  404 -> 405 in: if status not in (204, 404):
    Whether a line is logged when a trust ends by itself between two calls.
  not in -> in in: if status not in (204, 404):
    Whether a line is logged when Keystone ends no trust, or ends one.
  1 -> 2 in: self._after = (page[-1].project, page[-1].name) if len(page) == _PAGE else None
    The last trust of a full page is looked at once more.
zaqar_lite/service/jobs/bulk.py
  0 -> 1 in: and (self._before is None or 0 < due < self._before)
    No message is due in the first millisecond of 1970.
zaqar_lite/service/jobs/jobs.py
  self.wake_runner() -> pass in: self.wake_runner()
    Who runs jobs looks every two seconds, so that this only says it sooner.
  2 -> 3 in: found = await self.management.list_records(BESIDE, "", limit=2)
    One of two is another's, however many there are.
  >= -> > in: return page.messages, 0, page.marker, page.marker >= until
    The next look finds nothing, and ends the job.
  or -> and in: if page.marker is None or not page.messages:
    A page has a marker where it has messages.
  > -> >= in: size = max(1, size // 2) if took > _LONG else min(look.most, size * 2)
    A measured time that is the bound to the last bit of a float.
zaqar_lite/service/messages.py
  False -> True in: large: bool = False,
    Each request says it; only the probe of the health page, which lists one message, does not.
zaqar_lite/service/metrics/queue_depths.py
  + -> - in: self._passes, self._monitored = self._passes + 1, set(monitored)
    Every tenth pass reads the metadata, whether they are counted up or down.
  0 -> 1 in: self._passes = 0
    Which pass over the queues looks for those to be monitored.
  0 -> 1 in: kept.mark(self._clock(), self.flows.setdefault(queue, [0, 0, 0]))
    Only what is added to a flow between two instants is told.
  False -> True in: return False
    An internal queue is not shown, monitored or not.
zaqar_lite/service/pooling/drain.py
  >= -> > in: if count >= _MOST_FROZEN:
    How many queues are frozen at once, more or less: a group is frozen whole.
  1 -> 2 in: await new.import_messages(target, (one,), source=source, number=1)
    Each message that is carried is a source of its own, so any number of its batch will do.
  10_000 -> 10001 in: _LEASE_MS = 10_000
    How long a drain is held for a process that has ended.
  2_000 -> 2001 in: held = now >= since + HELD_MS + 2_000 * self.wait  # though clocks differ
    A tolerance for clocks that differ: a millisecond of it is no promise.
  0 -> 1 in: due = max((one.delay_expires_at or 0) - one.now, 0)
    Both are far before now.
  8 -> 9 in: name, target = secrets.token_hex(8), await self._target(group, work.value.pool)
    How many random digits the name of a group has.
zaqar_lite/service/pooling/placement.py
  5_000 -> 5001 in: MOVED_MS = 5_000
    A tolerance for clocks that differ: a millisecond of it is no promise.
zaqar_lite/service/pooling/pooled_store.py
  + -> - in: if waits and self.clock.now_ms() >= begun + CARRIED_MS // 2:
    To note once more that letters wait changes nothing for who carries them.
  is not -> is in: if not task.cancelled() and (error := task.exception()) is not None:
    Whether a line is logged when a pool does not open.
  + -> - in: self._turn = (self._turn + 1) % len(stores)
    Each call begins with another store either way round.
zaqar_lite/service/pooling/pools.py
  >= -> > in: if time.monotonic() - self._read_at >= FRESH:
    A measured time that is the bound to the last bit of a float.
zaqar_lite/service/post_validation.py
  > -> >= in: slices = Slices() if len(drafts) > STEP else None
    Whether a post of exactly one step gives others a turn at its end.
  <= -> < in: if ttl_ms <= delay_ms and not policy.ttl_after_delay:
    An instant that is, to the millisecond of this look, as far as the message lives.
zaqar_lite/service/presigned_urls.py
  <= -> < in: if until <= now:
    An instant of a whole second that is this very microsecond.
zaqar_lite/service/queues.py
  10_000 -> 10001 in: _MOST_SEEN = 10_000
    How many queues are remembered to have a record; others are looked at again.
zaqar_lite/service/quotas/concurrency_limits.py
  0 -> 1 in: if left < 0:
    The size of the reply is bounded; whether its last byte is used is no promise.
zaqar_lite/service/quotas/quota_usage.py
  > -> >= in: if not self.added.messages or self.took > _QUICK:
    A measured time that is the bound to the last bit of a float.
zaqar_lite/service/quotas/rate_limits.py
  100 -> 101 in: _AT_ONCE = 100
    How many projects one round writes at once; the same are written.
  10 -> 11 in: for name in list(islice(kept, _MAX_PROJECTS // 10)):
    How many are forgotten at a time.
zaqar_lite/service/schedules/schedules.py
  1 -> 2 in: return list(islice(schedule.instants(schedule.next - 1), SHOWN_INSTANTS))
    No schedule fires twice within a millisecond.
  1 -> 2 in: plan, timing, last = self.plan, self.plan.timing(self.created_at), self.next - 1
    No schedule fires twice within a millisecond.
  1 -> 2 in: after = due[-1].key
    The last entry of a full page is looked at once more.
  3_600 -> 3601 in: catch_up: int | str = 3_600
    An instant that was missed an hour and a second ago, where nobody said how long.
  0 -> 1 in: if self._clock.now_ms() < self._left_until.get(due.key, 0):
    No clock stands at the first millisecond of 1970.
  0 -> 1 in: def set_next(self, after: int, earliest: int = 0) -> None:
    No schedule is due in the first millisecond of 1970.
  1 -> 2 in: after = max(after, read_instant(plan.start) - 1)
    No schedule fires twice within a millisecond.
  < -> <= in: if now < self.due_at + GRACE_MS:
    To the millisecond; who comes to it half a minute late has missed it or not.
zaqar_lite/service/schedules/timing.py
  0 -> 1 in: next(self.after(0))
    Whether an expression ever fires; none fires in the first millisecond of 1970 only.
  10 -> 11 in: _MOST = 10 * 366 * 86_400
    How many years a duration may have.
  86_400 -> 86401 in: _MOST = 10 * 366 * 86_400
    How many years a duration may have, to the hour.
zaqar_lite/service/subscriptions/subscriptions.py
  1000 -> 1001 in: self.management, _NAMED, "The subscriber", _Name, lives=lambda name: name.ttl * 1000
    A name that outlives its subscription by 0.1 % is taken over, as one that a crash left.
zaqar_lite/storage/opendata/database.py
  1 -> 2 in: size = max(BLOCK_SIZE, position + 1 - self._block_end)
    How many ids that nothing has taken a block has at its end.
  4_096 -> 4097 in: BLOCK_SIZE = 4_096
    How many ids a start passes over at most: one more.
zaqar_lite/storage/opendata/recorder.py
  > -> >= in: if monotonic() > self._until:
    A measured time that is the bound to the last bit of a float.
zaqar_lite/storage/opendata/slatedb/__init__.py
  1 -> 2 in: self._descriptor = -1
    Any negative number stands for no descriptor.
  True -> False in: bounds = slatedb.KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
    No record has a key that is nothing but a prefix.
  > -> >= in: if size > _MOST_BYTES:
    How many bytes a batch takes between two turns, to the byte.
zaqar_lite/storage/opendata/slatedb/binding.py
  True -> False in: durability_filter=slatedb.DurabilityLevel.REMOTE, dirty=False, cache_blocks=True
    A record is read alone at a start only, and once.
zaqar_lite/storage/redis/outbox.py
  True -> False in: "read_outbox", keys_of(queue), repeatable=True
    What is not read now, the sweep moves.
zaqar_lite/storage/redis/posting.py
  > -> >= in: while len(some) > 1 and sum(map(len, some)) > _PART_BYTES:
    A part of a post has half the messages where its bytes are the bound exactly.
zaqar_lite/storage/redis/router.py
  0 -> 1 in: return [await self.node_of(0)]
    One server, which has all slots.
zaqar_lite/storage/redis/scripts/call.lua
  1 -> 2 in: at = math.min(at, tonumber(old) - 1)
    Which other score a visit gets, so that it is noticed.
  1 -> 2 in: local first = math.max(tonumber(life[N.last] or 0) + 1, clock[1] * 1000000 + clock[2] + offset * 1000)
    A position is passed over; they grow in leaps anyhow.
  37000 -> 37001 in: if first_ready < now + 37000 then
    Who waits looks again after half a minute; the rest is for that look's being late.
zaqar_lite/storage/redis/scripts/claiming.lua
zaqar_lite/storage/redis/scripts/indexes.lua
  > -> >= in: if #positions > 0 then
    Without positions each step below does nothing; asking first only saves the calls.
  0 -> 1 in: return #record + (is_apart(record) and size_of_body(record) or 0)
    A step ends at about so many bytes: one byte a message is no promise.
  and -> or in: if life[N.grouped] and is_grouped(record) then
    What is in no group has no place in their lists.
zaqar_lite/storage/redis/scripts/letters.lua
  0 -> 1 in: local letters, bytes, start = {}, 0, letter_ttl and struct.pack('>I6I5', now + letter_ttl, letter_ttl)
    Letters of nearly 1 MiB come with the answer, or are fetched by the next call.
  > -> >= in: is_armed = visits or armed_until and armed_until > now and tonumber(life[N.armed] or 0) >= armed_until
    A registration that ends in the very millisecond of a call.
  86400 -> 86401 in: call('SET', number, score_of(came), 'EX', 86400)
    How long it is known which letters came, a second more.
zaqar_lite/storage/redis/scripts/messages.lua
  < -> <= in: if not best or (rank == 0 and number < best) or (rank == -1 and number > best) then
    Where both are the same number, it is the best already.
  0 -> 1 in: bytes = bytes + (record and #record or 0) + (ARGV[10] == '1' and size_of_history(position, track) or 0)
    A step ends at about so many bytes: one byte a message is no promise.
zaqar_lite/storage/redis/scripts/queues.lua
  1000 -> 1001 in: local version = score_of(clock[1] * 1000000 + clock[2] + offset * 1000)
    The offset is 0 outside of tests.
zaqar_lite/storage/redis/scripts/records.lua
  0 -> 1 in: if version > 0 and ARGV[3] ~= '' and version ~= tonumber(ARGV[3]) then
    Versions are instants, so that none is 1.
zaqar_lite/storage/sql/claiming.py
  20 -> 21 in: _MOST_DUE, _MOST_LAPSED = 40, 20
    How many lapsed leases one claim ends; the next one ends the others.
zaqar_lite/storage/sql/database.py
  self._touched.pop(queue, None) -> pass in: self._touched.pop(queue, None)
    The counts of a queue whose row is not there change no row.
  and -> or in: if batch is not None and shares is not None and shares.last_call(len(batch.waiting)):
    A batch waits for one more round of the loop.
  1 -> 2 in: self.epoch += 1
    Batches are only compared; after one that was undone, fewer are careful.
  1_000 -> 1001 in: _CAREFUL = 1_000
    How long operations take the slower of two ways, after one that was undone.
zaqar_lite/storage/sql/place.py
  False -> True in: return False
    In RAM there are no pages to give back.
  2 -> 3 in: _COPY_AT = 2 << 20
    How much of the log is copied into the file at once; it is durable before.
  True -> False in: connection.close(force=True)
    Whether errors of closing cursors are left out; none of ours is open then.
  256 -> 257 in: connection = apsw.Connection(name, statementcachesize=256)
    How many statements a connection keeps prepared.
  1 -> 2 in: while part := os.pread(wal.fileno(), 1 << 20, start):
    How many bytes are written again at a time.
  0 -> 1 in: wal_bytes = 0
    How long the log is of a database in RAM, which has none.
  0 -> 1 in: self._copied = 0
    One byte of the two MiB after which the log is copied.
zaqar_lite/storage/sql/posting.py
  >= -> > in: if not parts or cost >= _COPIES:
    How many copies one step stores, more or less.
zaqar_lite/storage/sql/rows.py
  2 -> 3 in: body, holders = bodies[index], 2  # it is another message's: at least these two
    Only whether there is more than one is asked.
zaqar_lite/storage/sql/settling.py
  1 -> 2 in: position = db.take_positions(1, now * 1000)
    A position is passed over; they grow in leaps anyhow.
zaqar_lite/storage/sql/shares.py
  0 -> 1 in: while self._lines and self._room > 0:
    A batch whose room is one message has it for one request more, or not.
  8 -> 9 in: return 1 + len(message.copies) // 8 + len(message.outbox) + size // BYTES
    How many copies cost as much as a message.
"""  # noqa: E501 - lines of code as they are


def _explained() -> dict[tuple[str, str, str], str]:
    """Read the text: below a file its changes, as the tool prints them, each above its reason."""
    found, path = dict[tuple[str, str, str], str](), ""
    lines = iter(_EXPLAINED.splitlines())
    for line in lines:
        if line.startswith(" "):
            change, _, text = line.strip().partition(" in: ")
            new = change.partition(" -> ")[2]
            found[path, text, "" if new == "nothing" else new] = next(lines).strip()
        else:
            path = line
    return found


EXPLAINED = _explained()
