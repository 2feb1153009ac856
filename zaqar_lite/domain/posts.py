"""Messages that are about to be stored, and what came of it.

Durations are milliseconds, instants milliseconds since 1970 (see `models`). What a large post has
thousands of is hidden from the garbage collector, whose visits would hold up every request.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

from zaqar_lite.domain.models import DEFAULT_PRIORITY, Message, QueueRef

DIGEST_SIZE = 16
"""Bytes."""


class Copy(Struct, frozen=True, gc=False):
    """One more queue that receives a message by its filter (FAN_OUT): an entry of its own.

    A post that names the version of its queue's record makes none in a queue without a record,
    which was dropped since it was chosen.
    """

    queue: QueueRef
    ttl_ms: int
    delay_ms: int
    priority: int


class IdempotencyKey(NamedTuple):
    """A key that makes a post repeatable, and what it stands for.

    `digest` is over the bodies that were posted under the key: the same key with another digest is
    a mistake of the client, not a repetition. Headers, ttl and delay are not part of it: a producer
    that computes these anew for each try (a trace id, a deadline from its clock) still posts the
    same message.
    """

    text: str
    digest: bytes


class KnownKey(NamedTuple):
    """What a known key was answered with; a key of an earlier version has no digest."""

    ids: Sequence[str]
    digest: bytes | None

    def matches(self, key: IdempotencyKey) -> bool:
        """Whether the key came with what it stands for."""
        return self.digest in {None, key.digest}


class KnownKeys(NamedTuple):
    """What a queue knows of the key of a whole post, and of those of messages, by text.

    `are_any` tells whether it knows any key at all.
    """

    batch: KnownKey | None = None
    messages: Mapping[str, KnownKey] = {}
    are_any: bool = False


class OutboxEntry(NamedTuple):
    """An outbox message: stored with a message in one step, in another queue of the same store.

    `body` is JSON; the 32 bytes from `id_at` on are replaced by the id of the message.
    """

    queue: QueueRef
    body: bytes
    id_at: int
    ttl_ms: int
    delay_ms: int = 0

    def body_with(self, message_id: str) -> bytes:
        """The body as it is stored, with the id of its message."""
        return b"".join(
            (self.body[: self.id_at], message_id.encode(), self.body[self.id_at + 32 :])
        )


class NewMessage(Struct, frozen=True, gc=False):
    """A message to be stored. The service has validated it and resolved every default.

    `body` is JSON, stored and returned byte for byte. `delay_ms` is 0 on a normal queue.
    `priority`: lower is served first. `copies` is empty unless the store declares FAN_OUT.
    """

    body: bytes
    ttl_ms: int
    delay_ms: int = 0
    idempotency_key: IdempotencyKey | None = None
    headers: Mapping[str, str] | None = None
    priority: int = DEFAULT_PRIORITY
    copies: tuple[Copy, ...] = ()
    outbox: tuple[OutboxEntry, ...] = ()

    def stored(self, message_id: str, position: int, client_id: str, now: int) -> Message:
        """The message as it is when it is stored at `now`."""
        return Message(
            message_id,
            position,
            self.body,
            self.ttl_ms,
            created_at=now,
            expires_at=now + self.ttl_ms,
            now=now,
            client_id=client_id,
            delay_expires_at=now + self.delay_ms if self.delay_ms else None,
            headers=self.headers,
        )


class Posted(Struct, frozen=True, gc=False):
    """What became of one posted message: its id, and whether that id stood for it already."""

    id: str
    duplicate: bool = False


def identify(queue: QueueRef, text: str, bodies: Iterable[bytes]) -> IdempotencyKey:
    """Bind the key `text` to the bodies, as they were posted, that it stands for.

    It is bound to the queue, too, so that equal bodies elsewhere have other digests.
    """
    digest = blake2b(digest_size=DIGEST_SIZE)
    for part in (queue.project, queue.name, text):
        _add(digest, part.encode())
    for body in bodies:
        _add(digest, body)
    return IdempotencyKey(text, digest.digest())


def _add(digest: blake2b, part: bytes) -> None:
    """Add a part behind its length, so that no two lists of parts read the same."""
    digest.update(b"%d:" % len(part))
    digest.update(part)
