"""The idempotency keys that a queue remembers."""

from collections import OrderedDict
from hashlib import sha256

from zaqar_lite.storage.opendata.entries import NEVER

BATCH, MESSAGE = b"b", b"m"


def digest(key: str) -> bytes:
    """What stands for a key in memory and in the store: 16 bytes, whatever the key's length."""
    return sha256(key.encode()).digest()[:16]


class Keys:
    """Kind and digest of a key -> when it is forgotten, and the ids it was answered with.

    The window is one constant and time does not go back, so the order of insertion is the order
    of expiry.
    """

    def __init__(self) -> None:
        # Not a dict: its front is read and deleted again and again.
        self._known: OrderedDict[bytes, tuple[int, tuple[int, ...]]] = OrderedDict()
        self.changed: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> tuple[int, tuple[int, ...]] | None:
        """What a key (kind and digest) stands for."""
        return self._known.get(key)

    def put(self, key: bytes, expires_at: int, ids: tuple[int, ...]) -> None:
        """Remember a key."""
        self._known[key] = expires_at, ids
        self.changed.add(key)

    def restore(self, remembered: list[tuple[bytes, int, tuple[int, ...]]]) -> None:
        """Take over what the store remembers."""
        for key, expires_at, ids in sorted(remembered, key=lambda item: item[1]):
            self._known[key] = expires_at, ids

    def next_due(self) -> int:
        """When the first key is forgotten."""
        for expires_at, _ in self._known.values():
            return expires_at
        return NEVER

    def forget(self, now: int, limit: int = 1 << 62) -> None:
        """Forget up to `limit` keys whose window is over."""
        for _ in range(limit):
            if self.next_due() > now:
                return
            key, _ = self._known.popitem(last=False)
            self.changed.add(key)

    def clear(self) -> None:
        """Forget all keys."""
        self.changed.update(self._known)
        self._known.clear()
