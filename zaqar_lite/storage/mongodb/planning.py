"""What a batch of posts would store: decided from known keys, by the positions it was given."""

from collections.abc import Mapping, Sequence

from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.posts import IdempotencyKey, OutboxEntry, Posted
from zaqar_lite.storage.mongodb.documents import new_document
from zaqar_lite.storage.mongodb.group_commit import PendingPost
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.keys import BATCH, MESSAGE, Known, key_id
from zaqar_lite.storage.mongodb.queues import QueueState


def names_of(post: PendingPost, queue: str) -> list[str]:
    """The ids of the documents of all keys of a post."""
    names = [_name_of(MESSAGE, queue, message.idempotency_key) for message in post.messages]
    whole = _name_of(BATCH, queue, post.batch_key)
    return [name for name in [whole, *names] if name is not None]


def most_new(post: PendingPost, queue: str, known: Mapping[str, Known]) -> int:
    """How many messages a post stores at most; fewer where it has one key twice."""
    if _name_of(BATCH, queue, post.batch_key) in known:
        return 0
    return sum(_name_of(MESSAGE, queue, m.idempotency_key) not in known for m in post.messages)


class Plan:
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
        seen = self._find(BATCH, key)
        if seen is not None:
            _compare(seen, key, None)
            own = set(post.ids.values())
            post.answer = [Posted(each, each not in own) for each in seen.ids]
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
            seen = self._find(MESSAGE, key)
            if seen is not None:
                _compare(seen, key, index)
                (message_id,) = seen.ids
                answers.append(Posted(message_id, message_id not in first_seen))
                first_seen.discard(message_id)
                continue
            position = self._base + len(self.documents) + 1
            message_id = post.ids.setdefault(index, new_message_id(position))
            self.documents.append(
                new_document(
                    message,
                    self.state,
                    message_id=message_id,
                    position=position,
                    client_id=post.client_id,
                )
            )
            self.outbox += [(message_id, one) for one in message.outbox]
            answers.append(Posted(message_id))
            first_seen.discard(message_id)
            self._learn(MESSAGE, key, [message_id])
        return answers

    def _find(self, kind: str, key: IdempotencyKey | None) -> Known | None:
        name = _name_of(kind, self.state.key, key)
        return None if name is None else self._known.get(name) or self.keys.get(name)

    def _learn(self, kind: str, key: IdempotencyKey | None, ids: Sequence[str]) -> None:
        if key is not None:
            name = key_id(kind, key.text, self.state.key)
            self.keys[name] = Known(ids, key.digest, self.state.generation)


def _compare(seen: Known, key: IdempotencyKey | None, index: int | None) -> None:
    if key is not None and not seen.matches(key):
        raise KeyReused(index)


def _name_of(kind: str, queue: str, key: IdempotencyKey | None) -> str | None:
    return None if key is None else key_id(kind, key.text, queue)
