"""Posting: three commands without idempotency keys, and a retry that completes with them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest

from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.ids import new_claim_id, new_message_id
from zaqar_lite.domain.models import NewMessage, Posted, QueueRef, StoreOptions
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import new_document
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.keys import BATCH, MESSAGE, Keys, Remembered, key_id
from zaqar_lite.storage.mongodb.placing import Insertion, Placing
from zaqar_lite.storage.mongodb.queues import Queues, QueueState


class Posting:
    """Store messages, each key once."""

    def __init__(
        self,
        connection: Connection,
        queues: Queues,
        keys: Keys,
        placing: Placing,
        options: StoreOptions,
    ) -> None:
        self.connection = connection
        self._queues = queues
        self._keys = keys
        self._placing = placing
        self._options = options

    async def post(
        self,
        ref: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: str | None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        state = await self._queues.enter(ref, version)
        if batch_key is not None or any(m.idempotency_key is not None for m in messages):
            post = _KeyedPost(state, messages, client_id, batch_key)
            return await self._post_with_keys(ref, post)
        documents = [
            new_document(message, state, message_id="", client_id=client_id) for message in messages
        ]
        await self._placing.let_in(state, _Post(self, ref, documents))
        return [Posted(document["_id"]) for document in documents]

    async def _post_with_keys(self, ref: QueueRef, post: "_KeyedPost") -> Sequence[Posted]:
        state = post.state
        known = await self._keys.look_up(state, post.names)
        answered = post.answered_by(known)
        if answered is not None:
            return await self._answer(state, answered)
        added = len(post.names) - len(known)
        await self.admit(ref, state, state.counter, post.count_new(known), added)

        remembered = await self._keys.remember(state, post.wanted(), post.maker)
        answered = post.answered_by(remembered)
        if answered is not None:
            return await self._answer(state, answered)
        answers = post.resolve(remembered)
        documents = post.documents
        if not documents:
            await self._keys.mark(state.key, answers)
            return await self._answer(state, post.posted)

        async def seal() -> None:
            await self._keys.mark(state.key, answers)

        arrivals = _Post(self, ref, documents, keys=added, seal=seal)
        await self._placing.let_in(state, arrivals, resume=post.resumes)
        return post.posted

    async def _answer(self, state: QueueState, posted: Sequence[Posted]) -> Sequence[Posted]:
        """Answer for messages that an earlier post has stored; it may have died right after."""
        await self._placing.settle(state, [answer.id for answer in posted])
        return posted

    async def admit(
        self, ref: QueueRef, state: QueueState, base: int, messages: int, keys: int
    ) -> None:
        """Refuse a post over a limit; counts only where the upper bound does not tell.

        Positions are given out one by one, so base - floor is at least what is live; a count
        raises the floor, and the next one is needed only after as many posts again. The commit
        holds only if the counter is still where this has looked, so racing posts keep the limit.

        Raises:
            LimitReached: the queue may not hold or remember as many.
        """
        most, most_keys = self._options.max_messages, self._options.max_idempotency_keys
        if base - state.floor + messages > most:
            live = await self.connection.messages.count_documents(state.live, hint="position")
            if base - state.counter + live + messages > most:
                raise LimitReached(f"The queue {ref.name!r} may hold {most} messages.")
            await self._queues.raise_floor(state.key, state.counter - live)
        if keys and state.keys + keys > most_keys:
            live = await self._keys.count(state)
            if live + keys > most_keys:
                raise LimitReached(
                    f"The queue {ref.name!r} may remember {most_keys} idempotency keys."
                )
            await self._queues.set_keys(state, live)


class _Post(Insertion):
    """The messages of one post, checked against the limits until they are in."""

    def __init__(
        self,
        posting: Posting,
        ref: QueueRef,
        documents: Sequence[Document],
        *,
        keys: int = 0,
        seal: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(posting.connection, documents)
        self.keys = keys
        self._posting = posting
        self._ref = ref
        self._count = len(documents)
        self._seal = seal

    async def admit(self, state: QueueState, base: int) -> None:
        """Check the limits; see there."""
        await self._posting.admit(self._ref, state, base, self._count, 0)

    async def seal(self) -> None:
        """Mark the idempotency keys; see there."""
        if self._seal is not None:
            await self._seal()


class _KeyedPost:
    """One post with keys: which ids its messages have, which are to be stored, what it answers."""

    def __init__(
        self,
        state: QueueState,
        messages: Sequence[NewMessage],
        client_id: str,
        batch_key: str | None,
    ) -> None:
        self.state = state
        self.maker = new_claim_id()
        self.documents: list[Document] = []
        self.posted: list[Posted] = []
        self.resumes = False
        self._messages = messages
        self._client_id = client_id
        self._planned = [
            new_message_id(position)
            for position in range(state.counter + 1, state.counter + 1 + len(messages))
        ]
        self._batch = None if batch_key is None else key_id(BATCH, batch_key, state.key)
        self._names = [
            None if m.idempotency_key is None else key_id(MESSAGE, m.idempotency_key, state.key)
            for m in messages
        ]

    @property
    def names(self) -> Sequence[str]:
        """The ids of the documents of all keys, each once."""
        return [name for name in dict.fromkeys([self._batch, *self._names]) if name is not None]

    def answered_by(self, known: Mapping[str, Remembered]) -> Sequence[Posted] | None:
        """What the first post of the batch key answered, if it got as far."""
        batch = known.get(self._batch) if self._batch is not None else None
        if batch is None or batch.pending:
            return None
        return [Posted(message_id, duplicate=True) for message_id in batch.ids]

    def count_new(self, known: Mapping[str, Remembered]) -> int:
        """How many messages would be stored at most."""
        keyed = {name for name in self._names if name is not None and name not in known}
        return len(keyed) + self._names.count(None)

    def wanted(self) -> Mapping[str, Sequence[str]]:
        """The ids that each key shall stand for if it is new."""
        wanted: dict[str, Sequence[str]] = {}
        if self._batch is not None:
            wanted[self._batch] = self._planned
        for name, planned in zip(self._names, self._planned, strict=True):
            if name is not None:
                wanted.setdefault(name, [planned])
        return wanted

    def resolve(self, remembered: Mapping[str, Remembered]) -> Mapping[str, Sequence[str]]:
        """Settle ids and documents by what the keys stand for; answer the keys' final ids."""
        batch = remembered[self._batch] if self._batch is not None else None
        stored: set[str] = set()
        planned = self._planned
        if batch is not None:
            self.resumes = batch.maker != self.maker
            stored.update(batch.stored)
            first = batch.ids[: len(planned)]
            planned = [a or b for a, b in zip_longest(first, planned)]
        answers: dict[str, Sequence[str]] = {}
        for message, name, ours in zip(self._messages, self._names, planned, strict=True):
            message_id, is_duplicate = ours, ours in stored
            if name is not None:
                key = remembered[name]
                message_id = key.ids[0]
                is_duplicate = not key.pending or name in answers
                self.resumes = self.resumes or (key.pending and key.maker != self.maker)
                self.posted.append(Posted(message_id, is_duplicate or key.maker != self.maker))
                answers[name] = [message_id]
            else:
                self.posted.append(Posted(message_id, is_duplicate))
            if not is_duplicate:
                self._add(message, message_id, name)
        if self._batch is not None:
            answers[self._batch] = [posted.id for posted in self.posted]
        return answers

    def _add(self, message: NewMessage, message_id: str, name: str | None) -> None:
        keys = [key for key in (name, self._batch) if key is not None]
        self.documents.append(
            new_document(
                message, self.state, message_id=message_id, client_id=self._client_id, keys=keys
            )
        )
