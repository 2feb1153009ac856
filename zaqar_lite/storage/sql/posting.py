"""Posting: idempotency keys, limits, and the rows of new messages, copies and outbox messages.

A large post would hold up everybody: its statements the event loop, and its pages the batch that
others wait for. So it is cut into parts. One step checks it and reserves room for it; then each
part enters the queue in a step of its own, and in the batch that gathers then. The copies come
last, by their queues and not by their messages: those of a queue share its pages. In a file the
next steps store the parts as they are, in the table `post`, and last of all what is posted where.
From then on it will be in the queue whatever happens: a post that a crash or an error cuts short is
finished later, or forgotten where it was cut short before.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zaqar_lite.domain.errors import KeyReused, LimitReached, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import Copy, IdempotencyKey, KnownKey, NewMessage, Posted
from zaqar_lite.domain.refusals import too_many_keys, too_many_messages
from zaqar_lite.domain.yielding import Slices, in_steps, next_turn
from zaqar_lite.storage.sql import entries, expiring
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.queues import Queue
from zaqar_lite.storage.sql.rows import NewRows
from zaqar_lite.storage.sql.shares import BYTES, cost_of

logger = logging.getLogger(__name__)

_AT_ONCE, _PART, COPY = 100, 30, 3
"""The cost (`cost_of`, and COPY for each copy) up to which a post is stored in one step, and of
each part of a larger one: about 0.5 ms, as others wait for one in the loop and for two batches. A
post of one message is never cut: 100 copies of it, which are the most, took 0.8 ms. A copy costs
more than a message: it changes pages of another queue, which nothing else of the post does."""
_KEPT = 24_576
"""Bytes of parts that one step stores as they are, or a few more."""
_COPIES, _NEXT_QUEUE = 100, 5
"""Copies that one step of a large post stores, about 0.4 ms; each queue counts for some more."""
_LOOKED_UP = 200
"""Messages of a large post that one step counts, or whose keys it looks up: about 0.4 ms."""
MESSAGE, BATCH = 0, 1
"""The kinds of keys, as `schema.sql` writes them."""


class Post(Struct, frozen=True):
    """What a client posts: messages, how many keys, and whether these bring others along."""

    ref: QueueRef
    messages: Sequence[NewMessage]
    client_id: str
    batch_key: IdempotencyKey | None
    version: int | None
    keys: int
    brings: bool


class Plan(Struct, frozen=True):
    """What a post with keys will store, and what it answers.

    `stands` tells what stands for each of its messages: the id of one that is stored already, or
    the index of a new one, which is an earlier one where a key comes again. `earlier` are the keys
    of the new messages: the index of each, and its digest.
    """

    new: list[NewMessage] = []
    stands: list[str | int] = []
    earlier: dict[str, tuple[int, bytes]] = {}


class Head(Struct, frozen=True):
    """What is stored of a large post beside its messages."""

    post: Post
    stands: list[str | int]


class LargePost:
    """A post that enters its queue in parts.

    `number` is its number in the table `post`, 0 where it is not there; `parts` are those that have
    not entered yet, `ids` those of the messages that have, and `reserved` is the room for the rest,
    by queue. `copies` are the parts of what enters other queues then, each copy with the index of
    its message among `messages`; `entered` counts the parts of both kinds that have. All is as old
    as `now_us` says.
    """

    def __init__(  # noqa: PLR0917 - all that it is made of
        self,
        db: Database,
        head: Head,
        messages: Sequence[NewMessage],
        parts: Iterable[Sequence[NewMessage]],
        copies: deque[list[tuple[int, Copy]]],
        number: int = 0,
    ) -> None:
        self._undone = db.undone
        self.now_us = db.clock.now_us()
        self.head = head
        self.messages = messages
        self.parts = deque(parts)
        self.copies = copies
        self.number = number
        self.entered = 0
        self.ids: list[str] = []
        self.reserved: Counter[Queue] = Counter()

    def check(self, db: Database) -> None:
        """Refuse to go on where a batch was undone meanwhile: it may have held a part."""
        if db.undone != self._undone:
            raise Unavailable("The store undid a part of this post; some or all may be stored.")

    def reserve(self, queue: Queue, count: int) -> None:
        """Keep room in a queue; a count below 0 gives some back."""
        count = max(count, -self.reserved[queue])
        self.reserved[queue] += count
        queue.reserved += count

    def give_back(self) -> None:
        """Give back what is still reserved."""
        for queue, count in list(self.reserved.items()):
            self.reserve(queue, -count)


_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_part = msgspec.msgpack.Decoder(list[NewMessage]).decode
_encode = msgspec.msgpack.encode


async def post(  # noqa: PLR0917 - as the seam has it
    db: Database,
    ref: QueueRef,
    messages: Sequence[NewMessage],
    client_id: str,
    batch_key: IdempotencyKey | None,
    version: int | None,
) -> Sequence[Posted]:
    """Store messages; see the seam."""
    cost, keys, brings = 0, int(batch_key is not None), False
    for index, one in enumerate(messages, 1):
        if index % _LOOKED_UP == 0:
            await next_turn()
        cost += cost_of(one) + COPY * len(one.copies)
        if one.idempotency_key is not None:
            keys += 1
        if one.copies or one.outbox:
            brings = True
    wanted = Post(ref, messages, client_id, batch_key, version, keys, brings)
    is_large = cost > _AT_ONCE and len(messages) > 1
    if db.shares is not None:
        await _take_share(db, ref.project, _PART if is_large and not db.is_post_whole else cost)
    while True:
        if ref in db.busy or db.unfinished:
            await _turn(db, ref)
        try:
            if not is_large:
                if (answer := await db.write(_post_at_once, wanted)) is not None:
                    return answer
                continue
            # In a task of its own: what has begun is finished, whether its client is there or not.
            posting = db.busy[ref] = asyncio.create_task(_post_in_parts(db, wanted))
            posting.add_done_callback(lambda _: db.busy.pop(ref))
            return await asyncio.shield(posting)
        except LimitReached:  # what has expired, and keys that have ended, hold no room
            if not await _make_room(db, wanted):
                raise


async def _turn(db: Database, ref: QueueRef) -> None:
    """Wait until no large post and no drop is under way in a queue; finish those cut short."""
    while (busy := db.busy.get(ref)) is not None or db.unfinished:
        if busy is not None:
            await asyncio.wait({busy})
        else:  # a post that was cut short comes before later ones
            await finish_posts(db)


@asynccontextmanager
async def alone(db: Database, ref: QueueRef) -> AsyncIterator[None]:
    """Run the block while no post to a queue is under way; those that come meanwhile wait."""
    await _turn(db, ref)
    over = db.busy[ref] = asyncio.get_running_loop().create_future()
    try:
        yield
    finally:
        del db.busy[ref]
        over.set_result(None)


async def _take_share(db: Database, project: str, cost: int) -> None:
    await db.pass_gate()
    if db.shares is not None and not db.shares.joins(project, cost):
        await db.shares.wait(project, cost)


async def _make_room(db: Database, wanted: Post) -> bool:
    """Remove what has expired, and keys that have ended, until a post has room.

    Answers whether there was any.
    """
    was_any = False
    _, added = await _cut_copies(wanted.messages)
    added[wanted.ref] += len(wanted.messages)
    for ref, count in added.items():
        keys = wanted.keys if ref == wanted.ref else 0

        def has_room(queue: Queue, count: int = count, keys: int = keys) -> bool:
            is_full = queue.keys + keys > db.options.max_idempotency_keys
            return not (is_full or _is_full(db, queue, count))

        was_any |= await expiring.tidy(db, ref, has_room)
    return was_any


def _post_at_once(db: Database, wanted: Post) -> Sequence[Posted] | None:
    """Store a small post; None where it is not its turn, since something began meanwhile."""
    if wanted.ref in db.busy:
        return None
    now_us = db.clock.now_us()
    now = now_us // 1000
    found = db.queue_at(wanted.ref, wanted.version)
    if wanted.keys and (known := _known(db, found, wanted, now)) is not None:
        return known
    db.check_growth()
    plan = Plan() if wanted.keys else Plan(list(wanted.messages))
    if wanted.keys:
        _plan(db, wanted.ref, plan, wanted.messages, 0, now)
    _check_limits(db, found, wanted, plan, _added(wanted, plan.new), now)
    queue = db.make_queue(wanted.ref) if found is None else found
    copies: Iterable[tuple[int, Copy]] = ()
    if wanted.brings:
        copies = ((index, copy) for index, one in enumerate(plan.new) for copy in one.copies)
    ids = _store(db, queue, plan.new, wanted, now_us, copies)
    return _answer(db, queue, wanted, plan.stands, ids, now)


async def _post_in_parts(db: Database, wanted: Post) -> Sequence[Posted]:
    """Store a large post; others run in between."""
    large: LargePost | None = None
    try:
        now = db.clock.now_ms()
        answer = await db.look(lambda db: _known(db, db.queue(wanted.ref), wanted, now))
        if answer is None:
            plan = await _plan_in_steps(db, wanted, now)
            parts = await _cut(plan.new)
            copies, added = await _cut_copies(plan.new if wanted.brings else ())
            added[wanted.ref] += len(plan.new)
            large = await db.join(_accept, wanted, plan, added, parts, copies)
            with db.in_one_batch():
                await next_turn()
                if large.number:
                    await _keep(db, large)
                answer = await _finish(db, large)
        if db.place.syncs:
            await db.future()
    except BaseException:
        if large is not None and large.number:
            db.unfinished.add(large.number)
        raise
    finally:
        if large is not None:
            large.give_back()
    return answer


async def _plan_in_steps(db: Database, wanted: Post, now: int) -> Plan:
    """Plan a large post; meanwhile no other adds keys to the queue (`Database.busy`)."""
    if not wanted.keys:
        return Plan(list(wanted.messages))
    plan = Plan()
    for first in range(0, len(wanted.messages), _LOOKED_UP):
        await next_turn()
        await db.look(_plan, wanted.ref, plan, wanted.messages[first:][:_LOOKED_UP], first, now)
    return plan


async def _cut(messages: Sequence[NewMessage]) -> Sequence[Sequence[NewMessage]]:
    """Cut messages into parts that cost about as much as one step may."""
    parts: list[list[NewMessage]] = []
    left = 0
    async for _, some in in_steps(messages):
        for message in some:
            cost = cost_of(message)
            if not parts or cost > left:
                parts.append([])
                left = _PART
            left -= cost
            parts[-1].append(message)
    return parts


async def _cut_copies(
    messages: Sequence[NewMessage],
) -> tuple[deque[list[tuple[int, Copy]]], Counter[QueueRef]]:
    """Cut the copies of messages, sorted by queue, into parts that one step may store; count them.

    Each copy comes with its message's index. There may be half a million, so others have turns.
    """
    copies: dict[QueueRef, list[tuple[int, Copy]]] = defaultdict(list)
    slices = Slices()
    for index, message in enumerate(messages):
        await slices.next_turn()
        for copy in message.copies:
            copies[copy.queue].append((index, copy))
    parts = deque[list[tuple[int, Copy]]]()
    counts, cost = Counter[QueueRef](), 0
    for ref in list(copies):
        of_queue = copies.pop(ref)  # what is large is freed bit by bit
        counts[ref] = len(of_queue)
        cost += _NEXT_QUEUE
        for one in of_queue:
            if not parts or cost >= _COPIES:
                await slices.next_turn()
                parts.append([])
                cost = _NEXT_QUEUE
            parts[-1].append(one)
            cost += 1
    return parts, counts


def _accept(  # noqa: PLR0917 - a post, its plan, and its parts
    db: Database,
    wanted: Post,
    plan: Plan,
    added: Mapping[QueueRef, int],
    parts: Sequence[Sequence[NewMessage]],
    copies: deque[list[tuple[int, Copy]]],
) -> LargePost:
    """Check a large post that is planned, and reserve room for what it adds to each queue."""
    found = db.queue_at(wanted.ref, wanted.version)
    db.check_growth()
    _check_limits(db, found, wanted, plan, added.items(), db.clock.now_ms())
    head = Head(replace(wanted, messages=()), plan.stands)
    large = LargePost(db, head, plan.new, parts, copies)
    if db.place.syncs and not db.is_post_whole:
        large.number = db.take_number()
    _reserve(db, large, added)  # nothing is refused any more
    return large


def _reserve(db: Database, large: LargePost, added: Mapping[QueueRef, int]) -> None:
    """Reserve room in each queue but those that were dropped."""
    post = large.head.post
    for ref, count in added.items():
        if ref == post.ref or _is_there(post, db.queue(ref)):
            large.reserve(db.make_queue(ref), count)


async def _keep(db: Database, large: LargePost) -> None:
    """Store the parts of a large post in a file, and last its head, in bounded steps."""
    rows: list[tuple[int, int, bytes]] = []
    size = 0
    for part, what in (*enumerate(large.parts, 1), (0, large.head)):
        kept = _encode(what)
        rows.append((large.number, part, kept))
        size += len(kept)
        if size >= _KEPT or part == 0:
            await _take_share(db, large.head.post.ref.project, size // BYTES)
            await db.join(_keep_rows, large, rows)
            await next_turn()
            rows, size = [], 0


def _keep_rows(db: Database, large: LargePost, rows: Sequence[tuple[int, int, bytes]]) -> None:
    large.check(db)
    db.executemany("INSERT INTO post VALUES (?, ?, NULL, ?)", rows)


async def finish_posts(db: Database) -> None:
    """Finish the large posts that a crash or an error has cut short, or forget them."""
    async with db.finishing:
        for number in sorted(db.unfinished):
            rows = await db.look(_rows_of, number)
            try:
                large, added = await _read_large(db, rows, number)
            except (msgspec.DecodeError, LookupError) as exc:
                if 0 in rows:
                    logger.error(
                        "a post that was cut short can't be read, and is forgotten: %r", exc
                    )
                await db.join(_forget, number)
            else:
                try:
                    await db.join(_reserve, large, added)
                    await _finish(db, large)
                finally:
                    large.give_back()
            if db.place.syncs:
                await db.future()
            db.unfinished.discard(number)


def _rows_of(db: Database, number: int) -> dict[int, bytes]:
    """What is stored of a large post; without its head, 0, it was cut short before its answer."""
    select = "SELECT part, coalesce(content, ids) FROM post WHERE number = ?"
    return dict(db.execute(select, (number,)).fetchall())


def _forget(db: Database, number: int) -> None:
    db.execute("DELETE FROM post WHERE number = ?", (number,))


async def _read_large(
    db: Database, rows: Mapping[int, bytes], number: int
) -> tuple[LargePost, Mapping[QueueRef, int]]:
    """A large post as it was stored, and what is still to enter which queues."""
    head, entered = _decode_head(rows[0]), sum(part < 0 for part in rows)
    parts = [_decode_part(rows[part]) for part in range(1, len(rows) - entered)]
    messages = [one for part in parts for one in part]
    copies, _ = await _cut_copies(messages)
    for _ in range(entered - len(parts)):
        copies.popleft()
    large = LargePost(db, head, messages, parts[entered:], copies, number)
    large.entered = entered
    large.ids = _texts_of(b"".join(rows[-part] for part in range(1, entered + 1)))
    added = Counter({head.post.ref: sum(map(len, large.parts))})
    slices = Slices()
    for part in copies:
        await slices.next_turn()
        added.update(copy.queue for _, copy in part)
    return large, added


async def _finish(db: Database, large: LargePost) -> Sequence[Posted]:
    """Let the parts of a large post enter the queue, one after the other; answer for the post.

    Raises:
        Unavailable: a batch was undone meanwhile.
    """
    while large.parts or large.copies:
        cost = sum(map(cost_of, large.parts[0])) if large.parts else _PART
        await db.join(_enter_part if large.parts else _enter_copies, large)
        await next_turn()
        if not db.is_post_whole:
            await _take_share(db, large.head.post.ref.project, cost)
    return await db.join(_end, large)


def _enter_part(db: Database, large: LargePost) -> None:
    """Let the next part of a large post enter the queue."""
    large.check(db)
    post, messages = large.head.post, large.parts[0]
    queue = db.make_queue(post.ref)
    ids = _store(db, queue, messages, post, large.now_us, copies=())
    large.parts.popleft()
    large.ids += ids
    large.reserve(queue, -len(messages))
    _note_entered(db, large, ids)


def _is_there(wanted: Post, queue: Queue | None) -> bool:
    """Whether a queue for copies was not dropped, where this store keeps the queues' records."""
    return wanted.version is None or (queue is not None and queue.version > 0)


def _enter_copies(db: Database, large: LargePost) -> None:
    """Let the next copies enter their queues, but those for queues that were dropped meanwhile."""
    large.check(db)
    part, rows = large.copies[0], NewRows(db, large.head.post.client_id, large.now_us)
    rows.add_copies(large.messages, large.ids, part, lambda queue: queue in large.reserved)
    rows.insert()
    for _, copy in part:
        queue = db.queue(copy.queue)
        if queue is not None and queue in large.reserved:
            large.reserve(queue, -1)
    large.copies.popleft()
    _note_entered(db, large)


def _note_entered(db: Database, large: LargePost, ids: Sequence[str] = ()) -> None:
    large.entered += 1
    if large.number:
        db.execute(
            "INSERT INTO post VALUES (?, ?, ?, NULL)",
            (large.number, -large.entered, bytes.fromhex("".join(ids))),
        )


def _end(db: Database, large: LargePost) -> Sequence[Posted]:
    """Forget the parts of a large post, which are all in the queue, and answer for it."""
    large.check(db)
    if large.number:
        db.execute("DELETE FROM post WHERE number = ?", (large.number,))
    post, stands = large.head.post, large.head.stands
    return _answer(db, db.make_queue(post.ref), post, stands, large.ids, db.clock.now_ms())


def _added(wanted: Post, messages: Sequence[NewMessage]) -> Iterable[tuple[QueueRef, int]]:
    """How many messages and copies enter which queues with messages of a small post."""
    if not wanted.brings:
        return ((wanted.ref, len(messages)),)
    copies = Counter(copy.queue for message in messages for copy in message.copies)
    return (copies + Counter({wanted.ref: len(messages)})).items()


def _is_full(db: Database, queue: Queue | None, count: int) -> bool:
    """Whether a queue has no room for so many messages more."""
    held = 0 if queue is None else queue.total + queue.reserved
    return held + count > db.options.max_messages


def _known(db: Database, queue: Queue | None, wanted: Post, now: int) -> Sequence[Posted] | None:
    """The answer to an earlier post with the same key; None if there was none.

    Raises:
        KeyReused: its key stands for another post.
    """
    key = wanted.batch_key
    if key is None or queue is None or not queue.keys:
        return None
    found = find_keys(db, queue, BATCH, [key.text], now).get(key.text)
    if found is None:
        return None
    if not found.matches(key):
        raise KeyReused(None)
    return [Posted(one, duplicate=True) for one in found.ids]


def _check_limits(  # noqa: PLR0917 - a post, its plan, and what it adds to which queues
    db: Database,
    queue: Queue | None,
    wanted: Post,
    plan: Plan,
    added: Iterable[tuple[QueueRef, int]],
    now: int,
) -> None:
    """Refuse a post for which there is no room. Raises LimitReached."""
    if wanted.ref.name[:1] == "~":  # the server's own; each post comes here
        return
    if wanted.keys:
        _check_keys(db, queue, wanted, plan, now)
    for ref, count in added:
        if _is_full(db, queue if ref == wanted.ref else db.queue(ref), count):
            raise too_many_messages(ref, db.options.max_messages)


def _check_keys(db: Database, queue: Queue | None, wanted: Post, plan: Plan, now: int) -> None:
    """Refuse a post whose new keys are more than the queue may remember."""
    added = sum(message.idempotency_key is not None for message in plan.new)
    added += wanted.batch_key is not None
    most, wait = db.options.max_idempotency_keys, 0
    known = 0 if queue is None else queue.keys
    if added and known + added > most:
        if queue is not None and known:
            wait = expiring.next_key_end(db, queue) - now
        raise too_many_keys(wanted.ref, most, wait_ms=wait)


def _plan(  # noqa: PLR0917 - which messages of a post, the first one's index, and what was planned
    db: Database,
    ref: QueueRef,
    plan: Plan,
    messages: Sequence[NewMessage],
    first: int,
    now: int,
) -> None:
    """Plan some messages: leave out those whose key is known, or came earlier in the post.

    Raises:
        KeyReused: a key stands for another message.
    """
    keys = [one.idempotency_key for one in messages if one.idempotency_key is not None]
    queue, known = db.queue(ref), dict[str, KnownKey]()
    if queue is not None and queue.keys:
        known = find_keys(db, queue, MESSAGE, [key.text for key in keys], now)
    for index, message in enumerate(messages, first):
        key = message.idempotency_key
        if key is None:
            plan.stands.append(len(plan.new))
            plan.new.append(message)
        elif key.text in known:
            if not known[key.text].matches(key):
                raise KeyReused(index)
            plan.stands.append(known[key.text].ids[0])
        elif key.text in plan.earlier:
            earlier, digest = plan.earlier[key.text]
            if digest != key.digest:
                raise KeyReused(index)
            plan.stands.append(earlier)
        else:
            plan.earlier[key.text] = len(plan.new), key.digest
            plan.stands.append(len(plan.new))
            plan.new.append(message)


def find_keys(
    db: Database, queue: Queue, kind: int, texts: Sequence[str], now: int
) -> dict[str, KnownKey]:
    """The live keys of a kind, by their texts."""
    found: dict[str, KnownKey] = {}
    for values, text in entries.in_lists(list(dict.fromkeys(texts))):
        rows = db.execute(  # `+ends`: or SQLite reads all keys of the queue by their ends
            "SELECT key, ids, digest FROM idempotency"
            f" WHERE queue = ? AND kind = ? AND key IN ({text}) AND +ends > ?",
            (queue.number, kind, *values, now),
        )
        found.update({key: KnownKey(_texts_of(ids), digest) for key, ids, digest in rows})
    return found


def _texts_of(ids: bytes) -> list[str]:
    return ids.hex(" ", 16).split(" ") if ids else []


def _answer(  # noqa: PLR0917 - a post, what stands for its messages, and what was stored
    db: Database,
    queue: Queue,
    wanted: Post,
    stands: Iterable[str | int],
    ids: Sequence[str],
    now: int,
) -> Sequence[Posted]:
    """Answer for all messages of a post, and remember its key."""
    if not wanted.keys:
        return list(map(Posted, ids))
    posted, told = [], 0
    for one in stands:
        if isinstance(one, str):
            posted.append(Posted(one, duplicate=True))
        else:
            posted.append(Posted(ids[one], duplicate=one < told))
            told = max(told, one + 1)
    if wanted.batch_key is not None:
        numbers = bytes.fromhex("".join(one.id for one in posted))
        _remember(db, queue, BATCH, [(wanted.batch_key, numbers)], now)
    return posted


def _remember(
    db: Database, queue: Queue, kind: int, keys: Sequence[tuple[IdempotencyKey, bytes]], now: int
) -> None:
    """Remember keys of a kind, and the ids that each stands for."""
    ends = now + db.options.idempotency_window_ms
    db.touch(queue)
    # An ended key that nothing has removed yet is replaced, and was counted already.
    before = db.connection.total_changes()
    db.executemany(
        "DELETE FROM idempotency WHERE queue = ? AND kind = ? AND key = ?",
        [(queue.number, kind, key.text) for key, _ in keys],
    )
    queue.keys += len(keys) - (db.connection.total_changes() - before)
    db.executemany(
        "INSERT INTO idempotency VALUES (?, ?, ?, ?, ?, ?)",
        [(queue.number, kind, key.text, ends, key.digest, ids) for key, ids in keys],
    )
    queue.over_at = min(queue.over_at, ends)


def _store(  # noqa: PLR0917 - where what is stored, of which post, when, with which copies
    db: Database,
    queue: Queue,
    new: Sequence[NewMessage],
    wanted: Post,
    now_us: int,
    copies: Iterable[tuple[int, Copy]],
) -> list[str]:
    """Insert messages with their keys and outbox messages, and `copies` of them; answer their ids.

    Each of the copies has the index of its message.
    """
    rows = NewRows(db, wanted.client_id, now_us)
    ids = rows.add(queue, new) if new else []
    if wanted.brings:
        rows.add_copies(new, ids, copies, partial(_is_there, wanted))
        rows.add_outbox(new, ids)
    rows.insert()
    if wanted.keys:
        keys = [
            (message.idempotency_key, bytes.fromhex(own_id))
            for message, own_id in zip(new, ids, strict=True)
            if message.idempotency_key is not None
        ]
        if keys:
            _remember(db, queue, MESSAGE, keys, now_us // 1000)
    return ids
