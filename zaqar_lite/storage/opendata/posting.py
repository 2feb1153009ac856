"""Posting, adopting messages of other stores, and editing a message while it is delayed.

Limits and idempotency keys are checked here. A payload is stored once, however many queues get it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappush

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.edits import Deadlines, edited
from zaqar_lite.domain.errors import Conflict, KeyReused
from zaqar_lite.domain.models import DEFAULT_PRIORITY, Edit, Message, QueueRef, Record
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.domain.refusals import no_message, not_delayed, too_many_keys, too_many_messages
from zaqar_lite.storage.opendata.due import STEP, end_waits
from zaqar_lite.storage.opendata.entries import (
    MAX_ATTEMPTS,
    NOWHERE,
    PAGE_SIZE,
    Entry,
    EntryExtras,
    Page,
    ready_key,
)
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.records import Attempts, Kept, encode_attempt
from zaqar_lite.storage.opendata.idempotency import BATCH, MESSAGE, Known, digest_of
from zaqar_lite.storage.opendata.paging import cold_tail, prepared
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.reading import (
    bodies_in_memory,
    cold_of_ids,
    find_all_live,
    read_bodies,
)
from zaqar_lite.storage.opendata.state import State

_ADOPTED = "adopted"
_ADOPTED_FOR_MS = 86_400_000
"""How long the number of a source's last call is kept, in milliseconds."""


def post(
    db: State,
    queue: Queue,
    messages: Sequence[NewMessage],
    *,
    client_id: str,
    batch_key: IdempotencyKey | None,
    now: int,
) -> Sequence[Posted]:
    """Store messages in a queue, and their copies in others; answer their ids.

    Raises KeyReused: a key stands for another message; nothing was stored; LimitReached: over a
    limit; nothing was stored.
    """
    if batch_key is not None:
        known = queue.keys.get(BATCH + digest_of(batch_key.text), now)
        if known is not None:
            if not known.is_of(batch_key.digest):
                raise KeyReused(None)
            return [Posted(db.id_texts.write(number), duplicate=True) for number in known.ids]
    if not any(message.idempotency_key for message in messages):
        first = db.ids.next
        numbers = [*range(first, first + len(messages))]
        new, repeats, fresh = messages, set[int](), dict[bytes, Known]()
    else:
        new, numbers, repeats, fresh = _without_known(db, queue, messages, now)
    check_limits(db, queue, new, len(fresh) + (batch_key is not None), now)
    entries = make_entries(new, db.ids.take(len(new), db.puts), client_id, now)
    if entries:
        db.publish(queue, entries, [message.body for message in new])
    let_in(db, queue, new, entries, now)
    remember(db, queue, fresh, batch_key, numbers, now)
    write = db.id_texts.write
    return [Posted(write(n), duplicate=at in repeats) for at, n in enumerate(numbers)]


def remember(  # noqa: PLR0917 - the keys of a post and its answer
    db: State,
    queue: Queue,
    fresh: Mapping[bytes, Known],
    batch_key: IdempotencyKey | None,
    numbers: Sequence[int],
    now: int,
) -> None:
    """Remember the keys of a post's messages, and of the post with what it was answered."""
    ends = now + db.options.idempotency_window_ms
    if fresh:
        queue.keys.put_together(fresh, ends)
    if batch_key is not None:
        known = Known(tuple(numbers), batch_key.digest)
        queue.keys.put(BATCH + digest_of(batch_key.text), ends, known)


def _without_known(
    db: State, queue: Queue, messages: Sequence[NewMessage], now: int
) -> tuple[list[NewMessage], list[int], set[int], dict[bytes, Known]]:
    """The messages to store, the numbers that answer all, the indexes of repeats, the new keys.

    A message is stored if it has no key, or is the first with a key that is not known yet. Raises
    KeyReused: a key stands for another message, in the queue or earlier in the post.
    """
    new: list[NewMessage] = []
    numbers: list[int] = []
    repeats: set[int] = set()
    fresh: dict[bytes, Known] = {}
    get, number = queue.keys.get, db.ids.next
    for index, message in enumerate(messages):
        if message.idempotency_key is not None:
            text, digest = message.idempotency_key
            key = MESSAGE + digest_of(text)
            known = fresh.get(key) or get(key, now)
            if known is not None:
                if not known.is_of(digest):
                    raise KeyReused(index)
                numbers.append(known.ids[0])
                repeats.add(index)
                continue
            fresh[key] = Known((number,), digest)
        numbers.append(number)
        new.append(message)
        number += 1
    return new, numbers, repeats, fresh


def check_limits(
    db: State, queue: Queue, new: Sequence[NewMessage], keys_count: int, now: int
) -> None:
    """Check that the queue, and those that get copies, have room for messages and keys.

    Raises LimitReached: one has not.
    """
    most = db.options.max_messages
    if queue.total + len(new) > most:
        raise too_many_messages(queue.ref, most)
    if keys_count:
        _check_key_limit(db, queue, keys_count, now)
    copies = [copy.queue for message in new if message.copies for copy in message.copies]
    if not copies:
        return
    for ref, count in Counter(copies).items():
        target = db.queues.get(ref)
        if target is None or target.total + count <= most:
            continue
        db.catch_up(target, now)
        if target.total + count > most:
            raise too_many_messages(ref, most)


def _check_key_limit(db: State, queue: Queue, count: int, now: int) -> None:
    queue.keys.forget(now, STEP)
    most = db.options.max_idempotency_keys
    if len(queue.keys) + count > most:
        wait_ms = queue.keys.next_due() - now if queue.keys else 0
        raise too_many_keys(queue.ref, most, wait_ms=wait_ms)


def make_entries(new: Sequence[NewMessage], first: int, client_id: str, now: int) -> list[Entry]:
    """Make the entries of new messages, with ids in a row; they have no page yet."""
    entries: list[Entry] = []
    for number, one in enumerate(new, first):
        ttl_ms, delay_ms = one.ttl_ms, one.delay_ms
        visible_at = now + delay_ms if delay_ms else 0
        entry = Entry(
            number, number, NOWHERE, one.priority, visible_at, now + ttl_ms, ttl_ms, now, client_id,
            one.headers,
        )  # fmt: skip
        if delay_ms:
            entry.delayed = True
        entries.append(entry)
    return entries


def let_in(
    db: State, queue: Queue, new: Sequence[NewMessage], entries: Sequence[Entry], now: int
) -> None:
    """Add published messages to a queue, their copies and companions to others."""
    _append(queue, entries)
    db.changed(queue)
    if new and queue.ref in db.watched:
        db.announce(queue.ref, sum(not message.delay_ms for message in new))
    if any(message.copies for message in new):
        _copy(db, new, entries)
    if any(message.companions for message in new):
        _accompany(db, new, entries, now)


def _append(queue: Queue, new: Sequence[Entry]) -> None:
    """Add entries of new messages to the end of a queue; their positions are above all others."""
    left = new
    while left:
        page = queue.tail(left[0].position)
        room = PAGE_SIZE - len(page.entries)
        _fill(queue, page, left[:room])
        left = left[room:]


def _fill(queue: Queue, page: Page, new: Sequence[Entry]) -> None:
    """Add entries of new messages to a page, as `Queue.add` adds one of any kind.

    A large post adds thousands in one step, so the counters are written once.
    """
    entries, waiting = page.entries, 0
    for entry in new:
        entry.page = page
        entries[entry.position] = entry
        if entry.headers is not None:
            queue.join_group(entry)
        if entry.expires_at < page.min_expires:
            queue.note_expiry(entry)
        if entry.delayed:
            waiting += 1
            page.best_waiting = min(page.best_waiting, entry.priority)
            queue.note_wait(page, entry.visible_at)
            continue
        key = ready_key(entry)
        if page.order is not None:
            heappush(page.order, key)
        if key < page.best:
            queue.offer(page, key)
    queue.arrivals += len(new)
    queue.total += len(new)
    queue.delayed_count += waiting
    queue.ready_count += len(new) - waiting
    queue.changed_pages.add(page.number)


def _copy(db: State, new: Sequence[NewMessage], entries: Sequence[Entry]) -> None:
    """Add the copies of messages to their queues, each as an entry of its own."""
    brought: defaultdict[QueueRef, list[Entry]] = defaultdict(list)
    for message, entry in zip(new, entries, strict=True):
        if not message.copies:
            continue
        entry.ensure_extras().shared = True
        # Of a large post, the messages were made earlier; their log entries say when.
        number, now, client_id, headers = (
            entry.id, entry.created_at, entry.client_id, entry.headers,
        )  # fmt: skip
        db.shared[number] = 1 + len(message.copies)
        for copy in message.copies:
            ttl_ms, delay_ms = copy.ttl_ms, copy.delay_ms
            visible_at = now + delay_ms if delay_ms else 0
            brought[copy.queue].append(
                Entry(
                    number, number, NOWHERE, copy.priority, visible_at, now + ttl_ms, ttl_ms, now,
                    client_id, headers, delayed=delay_ms > 0, extras=EntryExtras(shared=True),
                )
            )  # fmt: skip
    for ref, copies in brought.items():
        target = db.queues.make(ref)
        _append(target, copies)
        db.changed(target)
        if ref in db.watched:
            db.announce(ref, sum(not entry.delayed for entry in copies))


def _accompany(db: State, new: Sequence[NewMessage], entries: Sequence[Entry], now: int) -> None:
    """Add the companions of messages to their queues, in the batch of the messages."""
    brought: dict[QueueRef, list[NewMessage]] = {}
    for message, entry in zip(new, entries, strict=True):
        shown = db.id_texts.write(entry.shown_id)
        for one in message.companions:
            companion = NewMessage(one.body_with(shown), one.ttl_ms, one.delay_ms)
            brought.setdefault(one.queue, []).append(companion)
    client_id = entries[0].client_id or ""
    for ref, companions in brought.items():
        target = db.queues.make(ref)
        ours = make_entries(companions, db.ids.take(len(companions), db.puts), client_id, now)
        db.publish(target, ours, [one.body for one in companions])
        let_in(db, target, companions, ours, now)


async def import_messages(
    db: State, ref: QueueRef, messages: Sequence[Message], *, source: str, number: int
) -> None:
    """Adopt messages of another store, in one batch; see the seam."""
    if not db.shares.joins(ref.project, len(messages)):
        await db.shares.wait(ref.project, len(messages))
    while True:
        while ref in db.staging:
            await db.staging[ref].wait()
        _, now = await prepared(db, ref, None, cold_tail)
        if ref not in db.staging:
            break
    name = f"{ref.name}/{source}"
    known = db.catalogue.get(_ADOPTED, ref.project, name, now)
    if known is None or int(known.value) < number:
        version, ends = db.ids.take(1, db.puts), now + _ADOPTED_FOR_MS
        value = str(number).encode()
        db.put_record(Record(_ADOPTED, ref.project, name, value, version, ends))
        for message in messages:
            if message.expires_at > now:
                unparked = replace(message, parked_until=None)
                entry = enter(db, ref, unparked, message.delay_expires_at or 0)
                db.keep_foreign_id(entry.id, message.id)
    await db.committer.durable()


def enter(
    db: State, ref: QueueRef, message: Message, due: int, priority: int = DEFAULT_PRIORITY
) -> Entry:
    """Add a message with all it has except its id and position; it is delayed until `due`."""
    queue = db.queues.make(ref)
    number, now = db.ids.take(1, db.puts), db.clock.now_ms()
    expires = max(message.expires_at, message.created_at + 1)  # 0 s would mean for ever in the log
    entry = Entry(
        number, number, queue.tail(number), priority, due, expires, message.ttl_ms,
        message.created_at, message.client_id or "unknown", message.headers,
    )  # fmt: skip
    entry.attempts = min(message.claim_count, MAX_ATTEMPTS)
    entry.delayed = due > now
    if message.origin is not None:
        entry.ensure_extras().origin = message.origin
    if (message.parked_until or 0) > now:
        entry.delayed = False
        entry.ensure_extras().parked_until = message.parked_until or 0
    if message.attempts or message.failure_count:
        attempts = message.attempts
        history = entry.ensure_extras().history = db.ids.take(1, db.puts)
        entry.ensure_extras().attempts = Attempts(
            tuple([one.client_id or "unknown" for one in attempts]),
            history,
            message.failure_count,
            attempts[-1].outcome if attempts else Ended.FAILED,
            tuple(Kept(one.number, one.size) for one in attempts),
        )
        for one in attempts:
            db.put(keys.attempt_key(history, one.number), encode_attempt(one))
        queue.changed_attempts.append(entry)
    queue.add(entry)
    db.publish(queue, (entry,), (message.body,))
    db.changed(queue)
    db.announce(ref, int(not entry.delayed))
    return entry


async def edit(db: State, ref: QueueRef, wanted: Edit) -> Message:
    """Change a delayed message; see the seam."""
    message_id, body, ttl_ms, delay_ms = (
        wanted.message_id, wanted.body, wanted.ttl_ms, wanted.delay_ms,
    )  # fmt: skip
    queue, entry, now, shown = await _editable(db, ref, message_id, wanted.version)
    visible_at, _ = edited(wanted, Deadlines(entry.visible_at, entry.expires_at), now)
    if body is not None and db.holders(entry) > 1:
        raise Conflict(
            f"The body of message {message_id} can't be changed: other queues hold it too."
        )
    if body is not None:
        shown = body
        db.store(entry.id, (body,))
    if ttl_ms is not None:
        queue.set_ttl(entry, ttl_ms, now)
    if delay_ms is not None:
        queue.set_delay(entry, visible_at)
        end_waits(queue, entry.page, now, len(entry.page.entries))
        db.announce(ref, int(visible_at <= now))
    message = entry.view(db.id_texts.write(entry.shown_id), now)
    message.body = shown
    db.changed(queue)
    await db.committer.durable()
    return message


async def _editable(
    db: State, ref: QueueRef, message_id: str, version: int | None
) -> tuple[Queue, Entry, int, bytes]:
    """The queue, the delayed message, the instant and the body, to be used before the next await.

    The body is read before anything is changed, so that the answer can't fail afterwards.
    """
    read: tuple[Entry, bytes] | None = None
    while True:
        queue, now = await prepared(db, ref, version, cold_of_ids(db, (message_id,)))
        found = () if queue is None else find_all_live(db, queue, (message_id,), now)
        if queue is None or not found:
            raise no_message(message_id)
        (entry,) = found
        if not entry.delayed or entry.visible_at <= now:
            raise not_delayed(message_id)
        bodies = bodies_in_memory(db, found)
        if bodies is not None:
            return queue, entry, now, bodies[0]
        if read is not None and read[0] is entry:
            return queue, entry, now, read[1]
        body = (await read_bodies(db, queue, found)).get(entry.position)
        if body is None:
            raise no_message(message_id)
        read = entry, body
