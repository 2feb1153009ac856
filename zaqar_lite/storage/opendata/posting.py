"""Posting: limits, idempotency keys, and a payload stored once for every queue that gets it."""

from collections import Counter
from collections.abc import Sequence

from zaqar_lite.domain.errors import KeyReused, LimitReached
from zaqar_lite.domain.models import Copy, IdempotencyKey, NewMessage, Posted, QueueRef
from zaqar_lite.storage.opendata.due import STEP
from zaqar_lite.storage.opendata.entries import NOWHERE, Entry
from zaqar_lite.storage.opendata.idempotency import BATCH, MESSAGE, Known, short
from zaqar_lite.storage.opendata.queue import Queue
from zaqar_lite.storage.opendata.state import State


def post(
    db: State,
    queue: Queue,
    messages: Sequence[NewMessage],
    *,
    client_id: str,
    batch_key: IdempotencyKey | None,
    now: int,
) -> Sequence[Posted]:
    """Store messages in a queue that is settled at `now`, and its copies; answer their ids.

    Raises:
        KeyReused: a key stands for another message; nothing was stored.
        LimitReached: over a limit; nothing was stored.
    """
    batch = b"" if batch_key is None else BATCH + short(batch_key.text)
    if batch_key is not None:
        known = queue.keys.get(batch, now)
        if known is not None:
            if not known.is_of(batch_key.digest):
                raise KeyReused(None)
            return [Posted(db.names.write(number), duplicate=True) for number in known.ids]
    if batch_key is None and not any(message.idempotency_key for message in messages):
        new = messages
        keyed: list[bytes | None] | None = None
    else:
        keyed = [
            None if message.idempotency_key is None else MESSAGE + short(message.idempotency_key[0])
            for message in messages
        ]
        new = _new(queue, messages, keyed, now)
    _check_limits(db, queue, new, now)
    if keyed is not None:
        _check_key_limit(db, queue, new, batch_key is not None, now)
    first = db.ids.take(len(new), db.puts)
    if keyed is None:
        _store(db, queue, new, first, client_id, now)
        posted = [Posted(db.names.write(number)) for number in range(first, first + len(new))]
    else:
        posted = _store_keyed(db, queue, messages, keyed, new, first, client_id, now)
        if batch_key is not None:
            ids = tuple(int(entry.id[:16], 16) for entry in posted)
            ends = now + db.options.idempotency_window_ms
            queue.keys.put(batch, ends, Known(ids, batch_key.digest))
    if any(message.companions for message in new):
        _accompany(db, new, [one.id for one in posted if not one.duplicate], client_id, now)
    db.changed(queue)
    if new and queue.ref in db.watched:
        db.announce(queue.ref, sum(not message.delay_ms for message in new))
    return posted


def _new(
    queue: Queue, messages: Sequence[NewMessage], keyed: Sequence[bytes | None], now: int
) -> list[NewMessage]:
    """The messages that will be stored: without a key, or the first of a key not known yet.

    Raises:
        KeyReused: a key stands for another message, in the queue or earlier in the post.
    """
    seen: dict[bytes, Known] = {}
    new = []
    for index, (message, key) in enumerate(zip(messages, keyed, strict=True)):
        posted = message.idempotency_key
        if key is not None and posted is not None:
            known = seen.get(key) or queue.keys.get(key, now)
            if known is not None:
                if not known.is_of(posted.digest):
                    raise KeyReused(index)
                continue
            seen[key] = Known((), posted.digest)
        new.append(message)
    return new


def _check_limits(db: State, queue: Queue, new: Sequence[NewMessage], now: int) -> None:
    most = db.options.max_messages
    if queue.total + len(new) > most:
        raise LimitReached(f"The queue {queue.ref.name!r} may hold {most} messages.")
    copies = [copy.queue for message in new if message.copies for copy in message.copies]
    if not copies:
        return
    for ref, count in Counter(copies).items():
        target = db.queues.get(ref)
        if target is None or target.total + count <= most:
            continue
        db.settle(target, now)
        if target.total + count > most:
            raise LimitReached(f"The queue {ref.name!r} may hold {most} messages.")


def _check_key_limit(
    db: State, queue: Queue, new: Sequence[NewMessage], has_batch_key: bool, now: int
) -> None:
    queue.keys.forget(now, STEP)
    most_keys = db.options.max_idempotency_keys
    keys = sum(message.idempotency_key is not None for message in new) + has_batch_key
    if keys and len(queue.keys) + keys > most_keys:
        raise LimitReached(
            f"The queue {queue.ref.name!r} may remember {most_keys} keys.",
            retry_after=max(1, -(-(queue.keys.next_due() - now) // 1000)) if queue.keys else 1,
        )


def _store_keyed(  # noqa: PLR0917 - the hot loop's values, passed on as they are
    db: State,
    queue: Queue,
    messages: Sequence[NewMessage],
    keyed: Sequence[bytes | None],
    new: Sequence[NewMessage],
    first: int,
    client_id: str,
    now: int,
) -> list[Posted]:
    _store(db, queue, new, first, client_id, now)
    posted: list[Posted] = []
    number = first
    get, write = queue.keys.get, db.names.write
    fresh: dict[bytes, Known] = {}
    for message, key in zip(messages, keyed, strict=True):
        if key is not None and message.idempotency_key is not None:
            known = fresh.get(key) or get(key, now)
            if known is not None:
                posted.append(Posted(write(known.ids[0]), duplicate=True))
                continue
            fresh[key] = Known((number,), message.idempotency_key.digest)
        posted.append(Posted(write(number)))
        number += 1
    if fresh:
        queue.keys.put_together(fresh, now + db.options.idempotency_window_ms)
    return posted


def _store(  # noqa: PLR0917 - as above
    db: State, queue: Queue, new: Sequence[NewMessage], first: int, client_id: str, now: int
) -> None:
    if not new:
        return
    entries: list[Entry] = []
    for number, (_, ttl_ms, delay_ms, _, headers, priority, _, _) in enumerate(new, first):
        visible_at = now + delay_ms if delay_ms else 0
        entry = Entry(
            number, number, NOWHERE, priority, visible_at, now + ttl_ms, ttl_ms, now, client_id,
            headers,
        )  # fmt: skip
        if delay_ms:
            entry.delayed = True
        entries.append(entry)
    db.publish(queue, entries, [message.body for message in new])
    tail, add = queue.tail, queue.add
    for entry, message in zip(entries, new, strict=True):
        entry.page = tail(entry.position)
        if message.copies:
            _copy(db, entry, message.copies, now)
        add(entry)


def _copy(db: State, entry: Entry, copies: Sequence[Copy], now: int) -> None:
    """Let other queues hold the message too, each as an entry of its own."""
    holders = 1
    for ref, ttl_ms, delay_ms, priority in copies:
        target = db.queues.make(ref)
        visible_at = now + delay_ms if delay_ms else 0
        copied = Entry(
            entry.id, entry.id, target.tail(entry.id), priority, visible_at, now + ttl_ms, ttl_ms,
            now, entry.client_id, entry.headers,
        )  # fmt: skip
        copied.delayed = bool(delay_ms)
        copied.remember().shared = True
        target.add(copied)
        db.changed(target)
        db.announce(ref, int(not delay_ms))
        holders += 1
    if holders > 1:
        entry.remember().shared = True
        db.shared[entry.id] = holders


def _accompany(
    db: State, new: Sequence[NewMessage], ids: Sequence[str], client_id: str, now: int
) -> None:
    """Let what messages bring along into its queues, in the batch of the messages."""
    brought: dict[QueueRef, list[NewMessage]] = {}
    for message, message_id in zip(new, ids, strict=True):
        for one in message.companions:
            entry = NewMessage(one.body_with(message_id), one.ttl_ms, one.delay_ms)
            brought.setdefault(one.queue, []).append(entry)
    for ref, entries in brought.items():
        target = db.queues.make(ref)
        _store(db, target, entries, db.ids.take(len(entries), db.puts), client_id, now)
        db.changed(target)
        db.announce(ref, sum(not entry.delay_ms for entry in entries))
