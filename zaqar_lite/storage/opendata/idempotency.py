"""The idempotency keys that a queue remembers."""

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256

from zaqar_lite.storage.opendata.entries import NEVER
from zaqar_lite.storage.opendata.format.bookkeeping import Remembered, encode_remembered

BATCH, MESSAGE, TOGETHER = b"b", b"m", b"t"
_MOST_TOGETHER = 1_000


def digest(key: str) -> bytes:
    """What stands for a key in memory and in the store: 16 bytes, whatever the key's length."""
    return sha256(key.encode()).digest()[:16]


class Keys:
    """Kind and digest of a key -> when it is forgotten, and the ids it was answered with.

    The window is one constant and time does not go back, so the order of insertion is the order
    of expiry. The keys of one post's messages are one record of the store, named by the first
    message's id: a record for each would be a write at a random place of the store for every
    message. A record goes with its last key.
    """

    def __init__(self) -> None:
        # Not a dict: its front is read and deleted again and again.
        self._known: OrderedDict[bytes, tuple[int, tuple[int, ...]]] = OrderedDict()
        self._records: dict[bytes, bytes] = {}  # the last key of a record -> the record's name
        self.changed: dict[bytes, bytes | None] = {}
        """The names of records that changed, with what they are now; None for those that go."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> tuple[int, tuple[int, ...]] | None:
        """What a key (kind and digest) stands for."""
        return self._known.get(key)

    def put(self, key: bytes, expires_at: int, ids: tuple[int, ...]) -> None:
        """Remember a key, in a record of its own."""
        self._known[key] = expires_at, ids
        self._records[key] = key
        self.changed[key] = encode_remembered(expires_at, ids)

    def put_together(self, new: Mapping[bytes, int], expires_at: int) -> None:
        """Remember the keys of a post's messages, each with the message's id."""
        keys, ids = list(new), list(new.values())
        self._known.update((key, (expires_at, (number,))) for key, number in new.items())
        for first in range(0, len(keys), _MOST_TOGETHER):
            part = slice(first, first + _MOST_TOGETHER)
            name = TOGETHER + ids[first].to_bytes(8, "big")
            self._records[keys[part][-1]] = name
            digests = b"".join(key[1:] for key in keys[part])
            self.changed[name] = encode_remembered(expires_at, ids[part], digests)

    def restore(self, remembered: list[tuple[bytes, Remembered]]) -> None:
        """Take over what the store remembers."""
        for name, record in sorted(remembered, key=lambda item: item[1].expires_at):
            new: list[tuple[bytes, tuple[int, ...]]]
            if record.digests:
                new = [
                    (MESSAGE + key, (number,))
                    for key, number in zip(record.digests, record.ids, strict=True)
                ]
            else:
                new = [(name, record.ids)]
            for key, ids in new:
                self._known.pop(key, None)  # its place is the later one
                self._known[key] = record.expires_at, ids
            self._records[new[-1][0]] = name

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
            name = self._records.pop(key, None)
            if name is not None:
                self.changed[name] = None

    def clear(self) -> None:
        """Forget all keys."""
        self.changed.update(dict.fromkeys(self._records.values()))
        self._known.clear()
        self._records.clear()
