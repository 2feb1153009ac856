"""Posting: three commands without idempotency keys, and a retry that completes with them."""

from collections.abc import Mapping, Sequence

from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.ids import new_claim_id, new_message_id
from zaqar_lite.domain.models import NewMessage, Posted, QueueRef, StoreOptions
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import new_document
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.keys import BATCH, MESSAGE, Keys, Remembered, key_id
from zaqar_lite.storage.mongodb.placing import Insertion
from zaqar_lite.storage.mongodb.queues import Queues, QueueState
from zaqar_lite.storage.mongodb.staging import Bringer, Staging


class Posting:
    """Store messages, each key once."""

    def __init__(
        self,
        connection: Connection,
        queues: Queues,
        keys: Keys,
        staging: Staging,
        options: StoreOptions,
    ) -> None:
        self.connection = connection
        self._queues = queues
        self._keys = keys
        self._staging = staging
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
        await self._staging.placing.let_in(state, _Post(self, ref, documents))
        return [Posted(document["_id"]) for document in documents]

    async def _post_with_keys(self, ref: QueueRef, post: "_KeyedPost") -> Sequence[Posted]:
        """Stage what is new, let the keys decide whose messages are stored, bring those in."""
        state = post.state
        known = await self._keys.look_up(state, post.names)
        added = 0
        if not post.is_known(known):
            post.plan(known)
            added = len(post.names) - len(known)
            await self.admit(ref, state, state.counter, len(post.documents), added)
            await self._staging.stage(state, post.documents, post.maker)
            for wanted in (post.message_keys, post.batch_key):
                undecided = wanted(known)
                if undecided:
                    decided = await self._keys.remember(state, undecided, post.maker)
                    known = {**known, **decided}
        answers = post.answers(known)
        ids = list(dict.fromkeys(answer.id for answer in answers))
        own = [document["_id"] for document in post.documents]
        needed = {*ids, *(message_id for key in known.values() for message_id in key.ids)}
        in_vain = [message_id for message_id in own if message_id not in needed]
        await self._staging.withdraw(state, in_vain, post.maker)

        async def admit(seen: QueueState, base: int, messages: int) -> None:
            await self.admit(ref, seen, base, messages, 0)

        if set(ids) <= set(own):
            bringer = Bringer(post.maker, admit, added)
            if await self._staging.bring_in(state, ids, bringer):
                return answers
            added = 0
        await self._staging.complete(state, ids, Bringer(post.maker, admit, added))
        return answers

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

    def __init__(self, posting: Posting, ref: QueueRef, documents: Sequence[Document]) -> None:
        super().__init__(posting.connection, documents)
        self._posting = posting
        self._ref = ref
        self._count = len(documents)

    async def admit(self, state: QueueState, base: int) -> None:
        """Check the limits; see there."""
        await self._posting.admit(self._ref, state, base, self._count, 0)


class _KeyedPost:
    """One post with keys: what it would store, what its keys shall say, and what it answers."""

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

    def is_known(self, known: Mapping[str, Remembered]) -> bool:
        """Tell whether an earlier post has decided all that this one could."""
        if self._batch is not None:
            return self._batch in known
        return all(name in known for name in self._names)

    def plan(self, known: Mapping[str, Remembered]) -> None:
        """Make the documents of the messages that no known key stands for."""
        seen = set(known)
        for message, name, planned in zip(self._messages, self._names, self._planned, strict=True):
            if name is None or name not in seen:
                self.documents.append(
                    new_document(message, self.state, message_id=planned, client_id=self._client_id)
                )
            if name is not None:
                seen.add(name)

    def message_keys(self, known: Mapping[str, Remembered]) -> Mapping[str, Sequence[str]]:
        """What each key of a message shall stand for if it is new."""
        wanted: dict[str, Sequence[str]] = {}
        for name, planned in zip(self._names, self._planned, strict=True):
            if name is not None and name not in known:
                wanted.setdefault(name, [planned])
        return wanted

    def batch_key(self, known: Mapping[str, Remembered]) -> Mapping[str, Sequence[str]]:
        """What the key of the batch shall stand for, when those of its messages are decided."""
        return {} if self._batch is None else {self._batch: self._ids(known)}

    def answers(self, known: Mapping[str, Remembered]) -> Sequence[Posted]:
        """What the post answers, now that all its keys are decided."""
        batch = None if self._batch is None else known.get(self._batch)
        if batch is not None and batch.maker != self.maker:
            return [Posted(message_id, duplicate=True) for message_id in batch.ids]
        own = {document["_id"] for document in self.documents}
        answers = []
        for message_id in self._ids(known):
            answers.append(Posted(message_id, message_id not in own))
            own.discard(message_id)  # another message of this batch with the same key
        return answers

    def _ids(self, known: Mapping[str, Remembered]) -> Sequence[str]:
        """The messages' ids; a key that a drop has forgotten since then says nothing."""
        return [
            planned if name is None or name not in known else known[name].ids[0]
            for name, planned in zip(self._names, self._planned, strict=True)
        ]
