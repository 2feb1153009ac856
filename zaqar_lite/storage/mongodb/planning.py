"""What a batch of posts would store: decided from known keys, by the positions it was given."""

from collections.abc import Mapping, Sequence

from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.ids import new_message_id
from zaqar_lite.domain.posts import Companion, IdempotencyKey, Posted
from zaqar_lite.storage.mongodb.documents import new_document
from zaqar_lite.storage.mongodb.group_commit import PendingPost
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.keys import BATCH, MESSAGE, Known, key_id
from zaqar_lite.storage.mongodb.queues import QueueState


def names_of(post: PendingPost, queue: str) -> list[str]:
    """The ids of the documents of all keys of a post."""
    names = [_name_of(queue, message.idempotency_key) for message in post.messages]
    return [name for name in [_batch_name_of(queue, post), *names] if name is not None]


def most_new(post: PendingPost, queue: str, known: Mapping[str, Known]) -> int:
    """How many messages a post stores at most; fewer where it has one key twice."""
    if _batch_name_of(queue, post) in known:
        return 0
    return sum(_name_of(queue, m.idempotency_key) not in known for m in post.messages)


class Plan:
    """The documents of messages and the new keys of the posts that were added, in their order."""

    def __init__(self, state: QueueState, known: Mapping[str, Known], base: int) -> None:
        self.state = state
        self.documents: list[Document] = []
        self.keys: dict[str, Known] = {}
        self.companions: list[tuple[str, Companion]] = []
        """What the messages bring along, each with the id of its message."""
        self._known = known
        self._base = base

    def add(self, post: PendingPost) -> None:
        """Decide what a post stores and answers.

        Raises:
            KeyReused: one of its keys stands for something else.
        """
        batch_name = _batch_name_of(self.state.key, post)
        if batch_name is not None and post.batch_key is not None:
            seen = self._find(batch_name)
            if seen is not None:
                _compare(seen, post.batch_key, None)
                own = set(post.ids.values())
                post.answer = [Posted(each, each not in own) for each in seen.ids]
                return
        post.answer = self._add_messages(post)
        if batch_name is not None and post.batch_key is not None:
            self._learn(batch_name, post.batch_key, [answer.id for answer in post.answer])

    @property
    def mark(self) -> tuple[int, int, int]:
        """How far the plan has come."""
        return len(self.documents), len(self.keys), len(self.companions)

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """Forget what was added since the mark: its post is refused."""
        del self.documents[mark[0] :]
        del self.companions[mark[2] :]
        while len(self.keys) > mark[1]:
            self.keys.popitem()

    def _add_messages(self, post: PendingPost) -> Sequence[Posted]:
        answers: list[Posted] = []
        first_seen = set(post.ids.values())  # in an earlier try, whose answer was lost
        for index, message in enumerate(post.messages):
            key = message.idempotency_key
            name = _name_of(self.state.key, key)
            seen = None if name is None else self._find(name)
            if seen is not None and key is not None:
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
            self.companions += [(message_id, one) for one in message.companions]
            answers.append(Posted(message_id))
            first_seen.discard(message_id)
            if name is not None and key is not None:
                self._learn(name, key, [message_id])
        return answers

    def _find(self, name: str) -> Known | None:
        return self._known.get(name) or self.keys.get(name)

    def _learn(self, name: str, key: IdempotencyKey, ids: Sequence[str]) -> None:
        self.keys[name] = Known(ids, key.digest, self.state.generation)


def _compare(seen: Known, key: IdempotencyKey, index: int | None) -> None:
    if not seen.matches(key):
        raise KeyReused(index)


def _name_of(queue: str, key: IdempotencyKey | None) -> str | None:
    return None if key is None else key_id(MESSAGE, key.text, queue)


def _batch_name_of(queue: str, post: PendingPost) -> str | None:
    return None if post.batch_key is None else key_id(BATCH, post.batch_key.text, queue)
