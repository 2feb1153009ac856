"""Posting: limits, idempotency keys, and a payload stored once for every queue that gets it."""

from collections import Counter
from collections.abc import Sequence

from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.models import Copy, NewMessage, Posted
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.idempotency import BATCH, MESSAGE, digest
from zaqar_lite.storage.opendata.queue import Queue


def post(
    db: Database,
    queue: Queue,
    messages: Sequence[NewMessage],
    *,
    client_id: str,
    batch_key: str | None,
    now: int,
) -> Sequence[Posted]:
    """Store messages in a queue that is settled at `now`, and its copies; answer their ids.

    Raises:
        LimitReached: over a limit; nothing was stored.
    """
    batch = None if batch_key is None else BATCH + digest(batch_key)
    if batch is not None:
        known = queue.keys.get(batch)
        if known is not None:
            return [Posted(db.names.write(number), duplicate=True) for number in known[1]]
    if batch is None and not any(message.idempotency_key for message in messages):
        new = messages
        keyed: list[bytes | None] | None = None
    else:
        keyed = [
            None if message.idempotency_key is None else MESSAGE + digest(message.idempotency_key)
            for message in messages
        ]
        new = _new(queue, messages, keyed)
    _check_limits(db, queue, new, now)
    if keyed is not None:
        _check_key_limit(db, queue, new, batch is not None)
    first = db.ids.take(len(new), db.puts)
    if keyed is None:
        _store(db, queue, new, first, client_id, now)
        posted = [Posted(db.names.write(number)) for number in range(first, first + len(new))]
    else:
        posted = _store_keyed(db, queue, keyed, new, first, client_id, now)
        if batch is not None:
            ids = tuple(int(entry.id[:16], 16) for entry in posted)
            queue.keys.put(batch, now + db.options.idempotency_window_ms, ids)
    db.changed(queue)
    return posted


def _new(
    queue: Queue, messages: Sequence[NewMessage], keyed: Sequence[bytes | None]
) -> list[NewMessage]:
    """The messages that will be stored: without a key, or the first of a key not known yet."""
    seen: set[bytes] = set()
    new = []
    for message, key in zip(messages, keyed, strict=True):
        if key is not None:
            if key in seen or queue.keys.get(key) is not None:
                continue
            seen.add(key)
        new.append(message)
    return new


def _check_limits(db: Database, queue: Queue, new: Sequence[NewMessage], now: int) -> None:
    most = db.options.max_messages
    if queue.total + len(new) > most:
        raise LimitReached(f"The queue {queue.ref.name!r} may hold {most} messages.")
    copies = [copy.queue for message in new if message.copies for copy in message.copies]
    if not copies:
        return
    for ref, count in Counter(copies).items():
        target = db.queues.get(ref)
        if target is None:
            continue
        db.settle(target, now)
        if target.total + count > most:
            raise LimitReached(f"The queue {ref.name!r} may hold {most} messages.")


def _check_key_limit(
    db: Database, queue: Queue, new: Sequence[NewMessage], has_batch_key: bool
) -> None:
    most_keys = db.options.max_idempotency_keys
    keys = sum(message.idempotency_key is not None for message in new) + has_batch_key
    if keys and len(queue.keys) + keys > most_keys:
        raise LimitReached(f"The queue {queue.ref.name!r} may remember {most_keys} keys.")


def _store_keyed(  # noqa: PLR0917 - the hot loop's values, passed on as they are
    db: Database,
    queue: Queue,
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
    fresh: dict[bytes, int] = {}
    for key in keyed:
        if key is not None:
            known = get(key)
            earlier = fresh.get(key) if known is None else known[1][0]
            if earlier is not None:
                posted.append(Posted(write(earlier), duplicate=True))
                continue
            fresh[key] = number
        posted.append(Posted(write(number)))
        number += 1
    if fresh:
        queue.keys.put_together(fresh, now + db.options.idempotency_window_ms)
    return posted


def _store(  # noqa: PLR0917 - as above
    db: Database, queue: Queue, new: Sequence[NewMessage], first: int, client_id: str, now: int
) -> None:
    if not new:
        return
    tail, add = queue.tail, queue.add
    entries: list[Entry] = []
    for number, (_, ttl_ms, delay_ms, _, headers, priority, copies) in enumerate(new, first):
        visible_at = now + delay_ms if delay_ms else 0
        entry = Entry(
            number, number, tail(number), priority, visible_at, now + ttl_ms, ttl_ms, now,
            client_id, headers,
        )  # fmt: skip
        if delay_ms:
            entry.delayed = True
        if copies:
            _copy(db, entry, copies, now)
        add(entry)
        entries.append(entry)
    db.publish(queue, entries, [message.body for message in new])


def _copy(db: Database, entry: Entry, copies: Sequence[Copy], now: int) -> None:
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
        holders += 1
    if holders > 1:
        entry.remember().shared = True
        db.shared[entry.id] = holders
