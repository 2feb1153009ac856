"""Posting: idempotency keys, limits, and the rows of new messages, copies and outbox messages."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.groups import group_of
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.sql import entries, expiring
from zaqar_lite.storage.sql.batches import Hold
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import DELAYED, READY
from zaqar_lite.storage.sql.queues import Queue
from zaqar_lite.storage.sql.shares import cost_of

_AT_ONCE = 750
"""The cost (`cost_of`: messages, copies and bytes) up to which a post is stored in one step."""
_SLICE = 250
"""Messages and copies that a larger one stores in each step: some 3 ms."""
_BYTES = 256 << 10
"""Bytes of bodies that such a step stores at most, beyond its first message."""
MESSAGE, BATCH = 0, 1
"""The kinds of keys, as `schema.sql` writes them."""

_INSERT_BODY = "INSERT INTO body VALUES (?, ?, ?)"
_INSERT_ENTRY = """INSERT INTO entry (queue, position, id, state, priority, due, until, expires,
    ttl, created, claims, failures, claim, claimed_at, last_end, body, is_shared, moved,
    has_attempts, client, headers, message_group, origin)
    VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, 0, 0, NULL, 0, NULL, ?, ?, 0, 0, ?, ?, ?, NULL)"""


class Post(Struct, frozen=True):
    """What a client posts: messages, and whether any of them has a key, or brings others along."""

    ref: QueueRef
    messages: Sequence[NewMessage]
    client_id: str
    batch_key: IdempotencyKey | None
    version: int | None
    has_keys: bool
    brings: bool


class Plan(Struct, frozen=True):
    """What a post will store, and what it answers.

    `repeats` tells, by index, which id stands for a message that is stored already; `firsts`
    which earlier message of the post has the same key. `known` answers a post that came before.
    """

    new: Sequence[NewMessage]
    repeats: dict[int, str]
    firsts: dict[int, int]
    known: Sequence[Posted] | None = None


async def post(  # noqa: PLR0917 - as the seam has it
    db: Database,
    ref: QueueRef,
    messages: Sequence[NewMessage],
    client_id: str,
    batch_key: IdempotencyKey | None,
    version: int | None,
) -> Sequence[Posted]:
    """Store messages; see the seam."""
    has_keys, brings = batch_key is not None, False
    for one in messages:
        if one.idempotency_key is not None:
            has_keys = True
        if one.copies or one.outbox:
            brings = True
    wanted = Post(ref, messages, client_id, batch_key, version, has_keys, brings)
    cost = cost_of(messages)
    if db.shares is not None and not db.shares.joins(ref.project, cost):
        await db.shares.wait(ref.project, cost)
    while (busy := db.posting.get(ref)) is not None:
        await busy.wait()
    await _make_room(db, wanted)
    if cost <= _AT_ONCE:
        return await db.write(_post_at_once, wanted)
    # In a task of its own: a client that goes away must not undo the batch of others.
    posting = asyncio.create_task(_post_in_steps(db, wanted))
    return await asyncio.shield(posting)


async def _make_room(db: Database, wanted: Post) -> None:
    """Remove what has expired and what keys have ended, in bounded steps, where that is needed."""
    now = db.clock.now_ms()
    await _make_room_in(db, wanted.ref, len(wanted.messages), now)
    if wanted.brings:
        for ref, count in _copies(wanted.messages).items():
            await _make_room_in(db, ref, count, now)
    while wanted.has_keys and (queue := db.queue(wanted.ref)) and queue.keys_at <= now:
        if not await db.change_queue(wanted.ref, None, 0, expiring.forget_keys, now, MAX_EXAMINED):
            break


async def _make_room_in(db: Database, ref: QueueRef, count: int, now: int) -> None:
    await db.pass_gate()
    while (queue := db.queue(ref)) is not None and queue.expiry_at <= now:
        if queue.total + queue.reserved + count <= db.options.max_messages:
            break
        if not await db.change_queue(ref, None, 0, expiring.expire, now, MAX_EXAMINED // 4):
            break
        await db.turns.wait()


def _post_at_once(db: Database, wanted: Post) -> Sequence[Posted]:
    now_us = db.clock.now_us()
    now = now_us // 1000
    queue, plan = _prepare(db, wanted, now)
    if plan.known is not None:
        return plan.known
    ids = _store(db, queue, plan.new, wanted, now_us)
    return _answer(db, queue, wanted, plan, ids, now)


async def _post_in_steps(db: Database, wanted: Post) -> Sequence[Posted]:
    """Store a large post in steps of one batch; others run in between."""
    while (busy := db.posting.get(wanted.ref)) is not None:
        await busy.wait()
    done = db.posting[wanted.ref] = asyncio.Event()
    reserved: list[tuple[Queue, int]] = []
    try:
        await db.pass_gate()
        with db.hold() as hold:
            answer = await _steps(db, wanted, hold, reserved)
            future = db.future() if db.place.syncs else None
    finally:
        for queue, count in reserved:
            queue.reserved -= count
        del db.posting[wanted.ref]
        done.set()
    if future is not None:
        await future
    return answer


async def _steps(
    db: Database, wanted: Post, hold: Hold, reserved: list[tuple[Queue, int]]
) -> Sequence[Posted]:
    now = db.clock.now_ms()
    with db.step:
        queue, plan = _prepare(db, wanted, now)
        if plan.known is not None:
            return plan.known
        for ref, count in (_copies(plan.new) if wanted.brings else {}).items():
            target = db.make_queue(ref)
            target.reserved += count
            reserved.append((target, count))
    ids: list[str] = []
    for part in _slices(plan.new):
        if hold.is_begun:
            await db.turns.wait()
            hold.check()
        with db.step:
            queue = db.make_queue(wanted.ref)
            ids += _store(db, queue, part, wanted, db.clock.now_us())
        hold.is_begun = True
    with db.step:
        return _answer(db, db.make_queue(wanted.ref), wanted, plan, ids, now)


def _slices(messages: Sequence[NewMessage]) -> Sequence[Sequence[NewMessage]]:
    slices: list[list[NewMessage]] = [[]]
    count = size = 0
    for message in messages:
        added = 1 + len(message.copies) + len(message.outbox)
        if slices[-1] and (count + added > _SLICE or size + len(message.body) > _BYTES):
            slices.append([])
            count = size = 0
        count += added
        size += len(message.body)
        slices[-1].append(message)
    return slices


def _copies(messages: Sequence[NewMessage]) -> Counter[QueueRef]:
    return Counter(copy.queue for message in messages for copy in message.copies)


def _prepare(db: Database, wanted: Post, now: int) -> tuple[Queue, Plan]:
    """Check keys and limits; nothing is stored yet.

    Raises:
        QueueChanged: the record is not at the post's version.
        KeyReused: a key stands for something else.
    """
    queue, key = db.queue_at(wanted.ref, wanted.version), wanted.batch_key
    if key is not None and queue is not None and queue.keys:
        found = find_keys(db, queue, BATCH, [key.text], now).get(key.text)
        if found is not None:
            ids, digest = found
            if digest not in {None, key.digest}:
                raise KeyReused(None)
            return queue, Plan((), {}, {}, [Posted(one, duplicate=True) for one in ids])
    db.check_growth()
    queue, plan = queue or db.make_queue(wanted.ref), Plan(wanted.messages, {}, {})
    if wanted.has_keys:
        plan = _plan(db, queue, wanted.messages, now)
        _check_keys(db, queue, wanted, plan, now)
    most = db.options.max_messages
    if queue.total + queue.reserved + len(plan.new) > most:
        raise too_many_messages(wanted.ref, most)
    if wanted.brings:
        for ref, count in _copies(plan.new).items():
            target = db.queue(ref)
            if count + (0 if target is None else target.total + target.reserved) > most:
                raise too_many_messages(ref, most)
    return queue, plan


def _check_keys(db: Database, queue: Queue, wanted: Post, plan: Plan, now: int) -> None:
    """Refuse a post whose new keys are more than the queue may remember."""
    added = sum(message.idempotency_key is not None for message in plan.new)
    added += wanted.batch_key is not None
    most = db.options.max_idempotency_keys
    if added and queue.keys + added > most:
        ends = expiring.next_key_end(db, queue)
        raise too_many_keys(wanted.ref, most, wait_ms=ends - now if queue.keys else 0)


def _plan(db: Database, queue: Queue, messages: Sequence[NewMessage], now: int) -> Plan:
    """Leave out messages whose key is known, or came earlier in the post.

    Raises:
        KeyReused: a key stands for another message.
    """
    keys = [one.idempotency_key for one in messages if one.idempotency_key is not None]
    known = find_keys(db, queue, MESSAGE, [key.text for key in keys], now) if queue.keys else {}
    plan = Plan(new := [], {}, {})
    earlier: dict[str, tuple[int, bytes]] = {}
    for index, message in enumerate(messages):
        key = message.idempotency_key
        if key is None:
            new.append(message)
        elif key.text in known:
            ids, digest = known[key.text]
            if digest not in {None, key.digest}:
                raise KeyReused(index)
            plan.repeats[index] = ids[0]
        elif key.text in earlier:
            first, digest = earlier[key.text]
            if digest != key.digest:
                raise KeyReused(index)
            plan.firsts[index] = first
        else:
            earlier[key.text] = index, key.digest
            new.append(message)
    return plan


def find_keys(
    db: Database, queue: Queue, kind: int, texts: Sequence[str], now: int
) -> dict[str, tuple[list[str], bytes | None]]:
    """The ids and digests that live keys of a kind stand for, by their texts."""
    found: dict[str, tuple[list[str], bytes | None]] = {}
    for values, text in entries.in_lists(list(dict.fromkeys(texts))):
        rows = db.execute(
            "SELECT key, ids, digest FROM idempotency"
            f" WHERE queue = ? AND kind = ? AND key IN ({text}) AND ends > ?",
            (queue.number, kind, *values, now),
        )
        found.update({key: (ids.hex(" ", 16).split(" "), digest) for key, ids, digest in rows})
    return found


def _answer(  # noqa: PLR0917 - a post, what is planned for it, and what was stored
    db: Database, queue: Queue, wanted: Post, plan: Plan, ids: Sequence[str], now: int
) -> Sequence[Posted]:
    """Remember the keys of a post, and answer for all of its messages."""
    if not wanted.has_keys:
        return list(map(Posted, ids))
    fresh = iter(ids)
    posted = []
    for index in range(len(wanted.messages)):
        if index in plan.repeats:
            posted.append(Posted(plan.repeats[index], duplicate=True))
        elif index in plan.firsts:
            posted.append(Posted(posted[plan.firsts[index]].id, duplicate=True))
        else:
            posted.append(Posted(next(fresh)))
    _remember(db, queue, wanted, posted, now)
    return posted


def _remember(db: Database, queue: Queue, wanted: Post, posted: Sequence[Posted], now: int) -> None:
    ends = now + db.options.idempotency_window_ms
    rows = [
        (queue.number, MESSAGE, key.text, ends, key.digest, bytes.fromhex(answer.id))
        for message, answer in zip(wanted.messages, posted, strict=True)
        if (key := message.idempotency_key) is not None and not answer.duplicate
    ]
    if wanted.batch_key is not None:
        ids = b"".join(bytes.fromhex(one.id) for one in posted)
        key = wanted.batch_key
        rows.append((queue.number, BATCH, key.text, ends, key.digest, ids))
    if not rows:
        return
    db.touch(queue)
    # An ended key that nothing has removed yet is replaced, and was counted already.
    before = db.connection.total_changes()
    db.executemany("DELETE FROM idempotency WHERE queue = ? AND kind = ? AND key = ?", [
        row[:3] for row in rows
    ])  # fmt: skip
    queue.keys += len(rows) - (db.connection.total_changes() - before)
    db.executemany("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?, ?)", rows)
    queue.keys_at = min(queue.keys_at, ends)


def _store(
    db: Database, queue: Queue, new: Sequence[NewMessage], wanted: Post, now_us: int
) -> list[str]:
    """Insert messages, their copies and their outbox messages; answer the messages' ids."""
    client_id = wanted.client_id
    ids = insert(db, queue, new, client_id, now_us) if new else []
    if not wanted.brings:
        return ids
    copies: dict[QueueRef, list[tuple[NewMessage, int]]] = defaultdict(list)
    brought: dict[QueueRef, list[NewMessage]] = defaultdict(list)
    for message, own_id in zip(new, ids, strict=True):
        for copy in message.copies:
            fresh = NewMessage(
                message.body, copy.ttl_ms, copy.delay_ms, None, message.headers, copy.priority
            )
            copies[copy.queue].append((fresh, int(own_id[:16], 16)))
        for one in message.outbox:
            brought[one.queue].append(
                NewMessage(one.body_with(own_id), one.ttl_ms, one.delay_ms, None, None)
            )
    for ref, made in copies.items():
        messages, bodies = zip(*made, strict=True)
        insert(db, db.make_queue(ref), messages, client_id, now_us, bodies)
    for ref, outbox in brought.items():
        insert(db, db.make_queue(ref), outbox, client_id, now_us)
    return ids


def insert(  # noqa: PLR0917 - a queue, what enters it, from whom and when
    db: Database,
    queue: Queue,
    new: Sequence[NewMessage],
    client_id: str,
    now_us: int,
    bodies: Sequence[int] | None = None,
) -> list[str]:
    """Insert messages at the end of a queue; answer their ids.

    `bodies` are the numbers of bodies that other entries have stored, where these are copies.
    """
    now, content, count = now_us // 1000, queue.content, len(new)
    db.touch(queue)
    first = db.take_positions(count, now_us)
    ids = db.new_ids(first, count)
    delayed, expiry_at, rows = 0, queue.expiry_at, []
    for index, one in enumerate(new):
        position, expires, headers = first + index, now + one.ttl_ms, one.headers
        due = 0
        if one.delay_ms:
            due = now + one.delay_ms
            delayed += 1
            queue.delayed_at = min(queue.delayed_at, due)
        expiry_at = min(expiry_at, expires)
        group = None if headers is None else group_of(headers)
        rows.append((
            content, position, bytes.fromhex(ids[index]), DELAYED if due else READY, one.priority,
            due, expires, one.ttl_ms, now, position if bodies is None else bodies[index],
            int(bodies is not None or bool(one.copies)), client_id,
            None if headers is None else json.dumps(headers),
            None if group is None else group.encode(errors="surrogatepass"),
        ))  # fmt: skip
    if bodies is not None:
        db.executemany(
            "UPDATE body SET holders = holders + 1 WHERE number = ?", [(one,) for one in bodies]
        )
    elif count == 1:
        db.execute(_INSERT_BODY, (first, 1, new[0].body))
    else:
        db.executemany(_INSERT_BODY, [(first + at, 1, one.body) for at, one in enumerate(new)])
    if count == 1:
        db.execute(_INSERT_ENTRY, rows[0])
    else:
        db.executemany(_INSERT_ENTRY, rows)
    queue.expiry_at = expiry_at
    queue.delayed += delayed
    queue.ready += count - delayed
    if db.watched:
        db.announce(queue.ref, count - delayed)
    return ids
