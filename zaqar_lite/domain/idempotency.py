"""What an idempotency key stands for: a digest of the bodies that were posted under it.

Headers, ttl and delay are not part of it: a producer that computes these anew for each try (a
trace id, a deadline from its clock) still posts the same message. The digest is bound to the queue
and the key, so that equal bodies elsewhere have other digests.
"""

from collections.abc import Iterable
from hashlib import blake2b

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey

DIGEST_SIZE = 16
"""Bytes."""


def identify(queue: QueueRef, text: str, bodies: Iterable[bytes]) -> IdempotencyKey:
    """Bind the key `text` to the bodies, as they were posted, that it stands for."""
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
