"""Posting: one transaction takes positions from the counter, inserts messages and keys, commits.

A key that is there answers its ids, whatever became of the messages since; and of racing posts with
one key the first to commit has stored it, because the id of a key's document is the key.

The counter's document is locked from the first of these commands to the commit, so positions
become visible in their order and no reader passes a slow writer. Between the commands nothing is
awaited but the server: the shorter the lock, the fewer transactions meet.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from bson import Int64
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from zaqar_lite.domain.errors import Invalid, KeyReused, Unavailable, ZaqarLiteError
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.models import Message, QueueRef, StoreOptions
from zaqar_lite.domain.posts import (
    IdempotencyKey,
    KnownKey,
    KnownKeys,
    NewMessage,
    OutboxEntry,
    Posted,
)
from zaqar_lite.domain.refusals import queue_changed, too_many_keys, too_many_messages
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.documents import to_document
from zaqar_lite.storage.mongodb.errors import TOO_LARGE, is_duplicate, translating
from zaqar_lite.storage.mongodb.group_commit import GroupCommit, PendingPost
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import Bound, MissingQueue, QueueState, key_of
from zaqar_lite.storage.mongodb.sweeping import Sweeping
from zaqar_lite.storage.mongodb.transactions import RetryBudget

_LARGEST_BODY = (16 << 20) - (64 << 10)
"""A document may have 16 MiB; headers and the other fields take the rest."""

_MS_PER_COUNTED = 0.005
"""How long a large count is good for, by the messages it found: the count itself took long."""

BATCH, MESSAGE = "b", "m"
_DAY_MS = 86_400_000


def key_id(kind: str, text: str, queue: str) -> str:
    """The id of a key's document; with the length in it no two keys have the same id."""
    return f"{kind}{len(text)}:{text}{queue}"


class Known(NamedTuple):
    """A key's document: what the key stands for, and the life of the queue that it belongs to."""

    key: KnownKey
    generation: int
    is_live: bool = True


class Keys:
    """The idempotency keys of all queues."""

    def __init__(self, connection: Connection, window_ms: int) -> None:
        self._connection = connection
        self._window_ms = window_ms

    async def look_up(self, queue: str, names: Collection[str]) -> dict[str, Known]:
        """Find the documents `names`, also those whose time is over.

        With a majority write concern only keys that a majority has are found: another one may still
        be rolled back with its messages, so it must not answer a replay.
        """
        found = await read_all(
            self._connection.known_keys,
            [
                {"$match": {"_id": {"$in": list(names)}, "q": queue}},
                {"$addFields": {"now": self._connection.now}},
            ],
            hint=BY_ID,
        )
        return {
            document["_id"]: Known(
                KnownKey(document["l"], document.get("d") or None),
                document["g"],
                document["e"] > document["now"],
            )
            for document in found
        }

    async def remember(
        self, session: AsyncClientSession, state: QueueState, new: dict[str, Known]
    ) -> None:
        """Write new keys; DuplicateKeyError tells that another post was faster."""
        ends = DatetimeMS(state.now + self._window_ms)
        await self._connection.keys.insert_many(
            [
                {
                    "_id": name,
                    "q": state.key,
                    "g": Int64(state.generation),
                    "e": ends,
                    "l": list(known.key.ids),
                    "d": Binary(known.key.digest or b""),
                }
                for name, known in new.items()
            ],
            session=session,
        )

    async def is_next(
        self, session: AsyncClientSession, state: QueueState, source: str, number: int
    ) -> bool:
        """Note the number of a source's call for a day; False where that call came before."""
        keys, name = self._connection.keys, {"_id": f"a{len(source)}:{source}{state.key}"}
        noted = {"l": [number], "e": DatetimeMS(state.now + _DAY_MS)}
        known = await keys.find_one(name, hint=BY_ID, session=session)
        if known is None:
            await keys.insert_one({**name, "q": state.key, **noted}, session=session)
        elif known["l"][0] >= number and known["e"] > state.date:
            return False
        else:
            await keys.update_one(name, {"$set": noted}, hint=BY_ID, session=session)
        return True

    async def forget(
        self, session: AsyncClientSession, state: QueueState, names: Collection[str]
    ) -> None:
        """Delete what is left of keys whose time, or whose queue's life, is over."""
        is_over = [{"e": {"$lte": state.date}}, {"g": {"$ne": Int64(state.generation)}}]
        await self._connection.keys.delete_many(
            {"_id": {"$in": list(names)}, "q": state.key, "$or": is_over}, session=session
        )

    async def first_end(self, state: QueueState) -> int | None:
        """Tell when the oldest live key of a queue ends; None where it has none."""
        live, keys = _live(state), self._connection.keys
        oldest = await keys.find_one(live, {"e": 1}, sort=[("e", 1)], hint="live")
        return None if oldest is None else int(oldest["e"])

    async def count(self, state: QueueState) -> int:
        """Count the live keys of a queue."""
        return await self._connection.keys.count_documents(_live(state), hint="live")


def _live(state: QueueState) -> Document:
    return {"q": state.key, "g": Int64(state.generation), "e": {"$gt": state.date}}


class _TryAgain(Exception):
    """The transaction can't be committed as it is; `remedy`, if any, comes before the next try."""

    def __init__(self, remedy: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self.remedy = remedy


class _Batch:
    """What is known of the queue of one batch of posts, kept from one try to the next."""

    def __init__(self, queue: QueueRef) -> None:
        self.queue = queue
        self.key = key_of(queue)
        self.generation: int | None = None
        self.counted: set[str] = set()
        """The fields of the bounds that were counted."""
        self.is_unclear = False
        """Whether an earlier try may have stored its posts: its answer was lost."""

    def is_live(self, known: Known) -> bool:
        """Tell whether a key is live, and not of a dropped queue, as far as that is known."""
        return known.is_live and self.generation in (None, known.generation)


def _names_of(post: PendingPost, queue: str) -> list[str]:
    """The ids of the documents of all keys of a post."""
    keys = [(BATCH, post.batch_key), *((MESSAGE, m.idempotency_key) for m in post.messages)]
    return [key_id(kind, key.text, queue) for kind, key in keys if key is not None]


def _most_new(post: PendingPost, queue: str, known: Mapping[str, Known]) -> int:
    """How many messages a post stores at most; fewer where it has one key twice."""
    whole, keys = post.batch_key, [message.idempotency_key for message in post.messages]
    if whole is not None and key_id(BATCH, whole.text, queue) in known:
        return 0
    return sum(key is None or key_id(MESSAGE, key.text, queue) not in known for key in keys)


class _Plan:
    """The documents of messages and the new keys of the posts that were added, in their order."""

    def __init__(self, state: QueueState, known: Mapping[str, Known], base: int) -> None:
        self.state = state
        self.documents: list[Document] = []
        self.keys: dict[str, Known] = {}
        self.outbox: list[tuple[str, OutboxEntry]] = []
        """What the messages bring along, each with the id of its message."""
        self._known = known
        self._base = base

    def add(self, post: PendingPost) -> None:
        """Decide what a post stores and answers.

        Raises:
            KeyReused: one of its keys stands for something else.
        """
        key = post.batch_key
        if (seen := self._find(BATCH, key, None)) is not None:
            own = set(post.ids.values())
            post.answer = [Posted(each, each not in own) for each in seen.key.ids]
            return
        post.answer = self._add_messages(post)
        self._learn(BATCH, key, [answer.id for answer in post.answer])

    @property
    def mark(self) -> tuple[int, int, int]:
        """How far the plan has come."""
        return len(self.documents), len(self.keys), len(self.outbox)

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """Forget what was added since the mark: its post is refused."""
        del self.documents[mark[0] :]
        del self.outbox[mark[2] :]
        while len(self.keys) > mark[1]:
            self.keys.popitem()

    def _add_messages(self, post: PendingPost) -> Sequence[Posted]:
        answers: list[Posted] = []
        first_seen = set(post.ids.values())  # in an earlier try, whose answer was lost
        for index, message in enumerate(post.messages):
            key = message.idempotency_key
            if (seen := self._find(MESSAGE, key, index)) is not None:
                (message_id,) = seen.key.ids
                answers.append(Posted(message_id, message_id not in first_seen))
                first_seen.discard(message_id)
                continue
            position = self._base + len(self.documents) + 1
            message_id = post.ids.setdefault(index, new_message_id(position))
            new = message.stored(message_id, position, post.client_id, self.state.now)
            self.documents.append(to_document(new, self.state, position))
            self.outbox += [(message_id, one) for one in message.outbox]
            answers.append(Posted(message_id))
            first_seen.discard(message_id)
            self._learn(MESSAGE, key, [message_id])
        return answers

    def _find(self, kind: str, key: IdempotencyKey | None, index: int | None) -> Known | None:
        if key is None:
            return None
        name = key_id(kind, key.text, self.state.key)
        seen = self._known.get(name) or self.keys.get(name)
        if seen is not None and not seen.key.matches(key):
            raise KeyReused(index)
        return seen

    def _learn(self, kind: str, key: IdempotencyKey | None, ids: Sequence[str]) -> None:
        if key is not None:
            name = key_id(kind, key.text, self.state.key)
            self.keys[name] = Known(KnownKey(ids, key.digest), self.state.generation)


@translating
class MongoMessageStore(Sweeping):
    """Messages and claims in MongoDB; this module stores messages, each key once."""

    def __init__(self, connection: Connection, options: StoreOptions) -> None:
        super().__init__(connection)
        self._options = options
        self._keys = Keys(connection, options.idempotency_window_ms)
        self._group_commit = GroupCommit(self._store)
        self._outbox_locks: WeakValueDictionary[QueueRef, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Finish the posts, and close what nobody else uses; see the seam."""
        await self._group_commit.close()
        await super().close()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        if any(len(message.body) > _LARGEST_BODY for message in messages):
            raise Invalid(TOO_LARGE)
        post = PendingPost(messages, client_id, batch_key, version)
        return await self._group_commit.add(queue, post)

    async def find_idempotency_keys(
        self, queue: QueueRef, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        """Tell what is known of keys; see the seam."""
        key, state = key_of(queue), await self._queues.read(queue)
        if state is None:
            return KnownKeys()
        texts = {key_id(MESSAGE, text, key): text for text in messages}
        whole = None if batch is None else key_id(BATCH, batch, key)
        names = [*texts, *(() if whole is None else (whole,))]
        found = {
            name: known.key
            for name, known in (await self._keys.look_up(key, names)).items()
            if known.is_live and known.generation == state.generation
        }
        ids = {text: found[name] for name, text in texts.items() if name in found}
        are_any = bool(found) or await self._keys.first_end(state) is not None
        return KnownKeys(None if whole is None else found.get(whole), ids, are_any)

    async def import_messages(
        self, queue: QueueRef, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store, in one transaction; see the seam."""

        async def insert(session: AsyncClientSession) -> int:
            state = await self._queues.advance(session, key_of(queue), messages=len(messages))
            if not await self._keys.is_next(session, state, source, number):
                return 0
            documents = [
                to_document(message, state, position)
                for position, message in enumerate(messages, state.counter - len(messages) + 1)
                if message.expires_at > state.now
            ]
            if documents:
                await self._connection.messages.insert_many(documents, session=session)
            return len(documents)

        self._readiness.announce(queue, await self._queues.in_transaction(insert))

    async def _store(self, queue: QueueRef, posts: Sequence[PendingPost]) -> None:
        """Store all posts in one transaction; where one is refused, try again with the others."""
        batch, tries = _Batch(queue), RetryBudget()
        while pending := [post for post in posts if not post.outcome.done()]:
            try:
                await self._store_once(batch, pending)
            except (_TryAgain, MissingQueue) as again:
                if not tries.left:
                    raise Unavailable(f"The queue {queue.name!r} changes too often.") from again
                if isinstance(again, MissingQueue):
                    await self._make_queue(again.queue, [] if again.queue != queue else pending)
                elif again.remedy is not None:
                    await again.remedy()
            except PyMongoError as exc:
                await tries.pause(exc, is_transient=is_duplicate(exc))
                batch.is_unclear = any(post.ids for post in pending)
            else:
                for post in pending:
                    self._accept(queue, post)

    async def _store_once(self, batch: _Batch, posts: Sequence[PendingPost]) -> None:
        """One try: it stores all of these posts, or raises."""
        names = {name for post in posts for name in _names_of(post, batch.key)}
        found = await self._keys.look_up(batch.key, names) if names else {}
        known = {name: each for name, each in found.items() if batch.is_live(each)}
        count = sum(_most_new(post, batch.key, known) for post in posts)
        if not count and len(known) == len(names):
            state = await self._queues.read(batch.queue)
            if state is None:
                raise MissingQueue(batch.queue)
            self._decide(batch, state, posts, known, room=(0, 0))
            return
        room = (count, len(names) - len(known))
        async with (
            self._outbox_locked(posts),
            self._connection.sessions.transaction() as session,
        ):
            state = await self._queues.advance(session, batch.key, messages=room[0], keys=room[1])
            if batch.is_unclear and await self._accept_stored(session, batch, posts):
                raise _TryAgain
            plan = self._decide(batch, state, posts, known, room=room)
            await self._insert(session, plan, stale=found.keys() - known.keys())
            await self._store_outbox(session, plan, posts)

    async def _insert(
        self, session: AsyncClientSession, plan: _Plan, *, stale: Collection[str]
    ) -> None:
        if plan.documents:
            await self._connection.messages.insert_many(plan.documents, session=session)
        if stale:
            await self._keys.forget(session, plan.state, stale)
        if plan.keys:
            await self._keys.remember(session, plan.state, plan.keys)

    @asynccontextmanager
    async def _outbox_locked(self, posts: Sequence[PendingPost]) -> AsyncIterator[None]:
        """Let no other transaction of this process change the queues of outbox messages."""
        targets = {one.queue for post in posts for m in post.messages for one in m.outbox}
        async with AsyncExitStack() as held:
            for queue in sorted(targets):
                await held.enter_async_context(self._outbox_locks.setdefault(queue, asyncio.Lock()))
            yield

    async def _store_outbox(
        self, session: AsyncClientSession, plan: _Plan, posts: Sequence[PendingPost]
    ) -> None:
        """Store the messages' outbox messages in the same transaction; no limit stops them."""
        clients = {message_id: post.client_id for post in posts for message_id in post.ids.values()}
        by_queue: dict[QueueRef, list[tuple[str, OutboxEntry]]] = {}
        for message_id, one in plan.outbox:
            by_queue.setdefault(one.queue, []).append((message_id, one))
        for queue, some in by_queue.items():
            count = len(some)
            state = await self._queues.advance(session, key_of(queue), messages=count)
            documents = []
            for position, (message_id, one) in enumerate(some, state.counter - count + 1):
                brought = NewMessage(one.body_with(message_id), one.ttl_ms, one.delay_ms)
                new_id, client_id = new_message_id(position), clients[message_id]
                message = brought.stored(new_id, position, client_id, state.now)
                documents.append(to_document(message, state, position))
            await self._connection.messages.insert_many(documents, session=session)

    def _decide(
        self,
        batch: _Batch,
        state: QueueState,
        posts: Sequence[PendingPost],
        known: Mapping[str, Known],
        *,
        room: tuple[int, int],
    ) -> _Plan:
        """Plan all posts; `room` is what the queue's bounds have been raised by for them.

        Raises:
            _TryAgain: one of them is refused, or more must be known of the queue.
        """
        if any(each.generation != state.generation for each in known.values()):
            batch.generation = state.generation
            raise _TryAgain
        plan = _Plan(state, known, state.counter - room[0])
        before = state._replace(
            messages=state.messages.less(room[0]), keys=state.keys.less(room[1])
        )
        refused = False
        for post in posts:
            mark = plan.mark
            try:
                state.check(batch.queue, post.version)
                plan.add(post)
                self._admit(batch, before, plan)
            except ZaqarLiteError as exc:
                plan.rewind(mark)
                post.refuse(exc)
                refused = True
        if refused:
            raise _TryAgain
        return plan

    def _admit(self, batch: _Batch, before: QueueState, plan: _Plan) -> None:
        """Refuse a post that the queue, as it was `before` this batch, has no room for.

        Posts raise a queue's bounds, and nothing lowers them. So what is live is counted when a
        bound is reached, and nobody counts again before the time that the count is good for.

        Raises:
            LimitReached: the queue may not hold so many messages, or remember so many keys.
            _TryAgain: they must be counted first.
        """
        options = self._options
        if batch.queue.name.startswith("~"):  # the server's own
            return
        for bound, new, most, refusal in (
            (before.messages, plan.documents, options.max_messages, too_many_messages),
            (before.keys, plan.keys, options.max_idempotency_keys, too_many_keys),
        ):
            if not new or bound.most + len(new) <= most:
                continue
            is_sure = bound.field in batch.counted or before.now < bound.sure_until
            if bound.most and not is_sure:
                raise _TryAgain(partial(self._count_live, batch, before, bound))
            raise refusal(batch.queue, most, wait_ms=bound.sure_until - before.now)

    async def _count_live(self, batch: _Batch, state: QueueState, bound: Bound) -> None:
        if bound is state.messages:
            live = await self._connection.messages.count_documents(state.live, hint="sized")
            until = state.now
        else:
            live = await self._keys.count(state)
            until = await self._keys.first_end(state) or state.now
        until = max(until, state.now + _pause_after(live))
        if await self._queues.note_count(state, bound, live, until):
            batch.counted.add(bound.field)

    async def _make_queue(self, queue: QueueRef, posts: Sequence[PendingPost]) -> None:
        """Make a queue's document; refuse the posts to it that were decided by a record."""
        for post in posts:
            if post.version:
                post.refuse(queue_changed(queue))
        if not posts or not all(post.outcome.done() for post in posts):
            await self._queues.seed(queue)

    async def _accept_stored(
        self, session: AsyncClientSession, batch: _Batch, posts: Sequence[PendingPost]
    ) -> bool:
        """Accept the posts that an earlier try has stored; answer whether there are any.

        One message tells that all of a post are stored. Some may be acknowledged by now. Without
        this, a post that is stored could be refused, because the queue is full or changed since.
        """
        posts_by_id = {message_id: post for post in posts for message_id in post.ids.values()}
        cursor = self._connection.messages.find(
            {"_id": {"$in": list(posts_by_id)}}, {"_id": 1}, hint=BY_ID, session=session
        )
        stored = {posts_by_id[document["_id"]] for document in await cursor.to_list()}
        for post in stored:
            self._accept(batch.queue, post)
        return bool(stored)

    def _accept(self, queue: QueueRef, post: PendingPost) -> None:
        self._readiness.announce(queue, sum(not message.delay_ms for message in post.messages))
        for one in (one for message in post.messages for one in message.outbox):
            self._readiness.announce(one.queue, int(not one.delay_ms))
        post.accept()


def _pause_after(counted: int) -> int:
    """For how many milliseconds a count is good: in proportion to what it has cost."""
    return 0 if counted <= MAX_EXAMINED else int(counted * _MS_PER_COUNTED)
