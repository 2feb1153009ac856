"""The idempotency keys that a queue remembers."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from struct import Struct, unpack
from typing import NamedTuple

from zaqar_lite.domain.posts import KnownKey, KnownKeys
from zaqar_lite.storage.opendata.entries import NEVER
from zaqar_lite.storage.opendata.format import CodecError, bookkeeping

BATCH, MESSAGE, TOGETHER = b"b", b"m", b"t"
_MOST_TOGETHER = 1_000
_UNKNOWN = bytes(16)
_HEAD = Struct("<q16s")


def digest_of(key: str) -> bytes:
    """The 16 bytes that are kept of a key, whatever its length."""
    return sha256(key.encode()).digest()[:16]


def is_of_post(name: bytes) -> bool:
    """Whether a record of this name has the keys of all messages of a post."""
    return name.startswith(TOGETHER)


def read_record(name: bytes, value: bytes) -> bookkeeping.KeyRecord:
    """Read a record of keys, by its name and its value. Raises CodecError: it is no such record."""
    record = bookkeeping.decode_keys(value)
    ids, digests = len(record.ids), len(record.digests)
    if digests not in ((ids, 2 * ids) if is_of_post(name) else (0, 1)):
        raise CodecError(f"{digests} digests for {ids} ids")
    return record


class Known(NamedTuple):
    """The ids that a key was answered with, and the digest of what was posted with it."""

    ids: tuple[int, ...]
    digest: bytes

    def is_of(self, digest: bytes) -> bool:
        """Whether the same was posted. Keys of earlier versions have no digest, and match all."""
        return self.digest in (digest, _UNKNOWN)


class _Group(NamedTuple):
    """The keys of one record, the record's name, and when they are forgotten."""

    expires_at: int
    name: bytes
    keys: Sequence[bytes]


class Keys:
    """The keys of a queue, by kind and digest: when each is forgotten, and its answer's ids.

    Keys are forgotten in the order in which they came, which is the order of their ends unless the
    window was made shorter: then newer keys wait for older ones. The keys of one post's messages
    are one record, named by the first message's id, because a record for each would be a write at
    a random place of the store for every message. A record is deleted with the last of its keys.

    A queue may have millions of keys, so each is one flat value: end, digest, ids.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._groups: deque[_Group] = deque()
        self._last_due = 0
        self.changed: dict[bytes, bytes | None] = {}
        """The names of records that changed, with what they are now; None for those that go."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes, now: int) -> Known | None:
        """What a key (kind and digest) stands for, unless its window is over."""
        value = self._known.get(key)
        if value is None:
            return None
        expires_at, digest = _HEAD.unpack_from(value)
        if expires_at <= now:
            return None
        return Known(unpack(f"<{(len(value) - _HEAD.size) // 8}Q", value[_HEAD.size :]), digest)

    def recall(
        self, messages: Collection[str], batch: str | None, now: int, write: Callable[[int], str]
    ) -> KnownKeys:
        """Look up keys by their texts; `write` makes the texts of ids."""

        def of(kind: bytes, text: str) -> KnownKey | None:
            known = self.get(kind + digest_of(text), now)
            if known is None:
                return None
            digest = None if known.digest == _UNKNOWN else known.digest
            return KnownKey(tuple(map(write, known.ids)), digest)

        found = {text: of(MESSAGE, text) for text in messages}
        return KnownKeys(
            None if batch is None else of(BATCH, batch),
            {text: one for text, one in found.items() if one is not None},
        )

    def put(self, key: bytes, expires_at: int, known: Known) -> None:
        """Remember a key, in a record of its own."""
        self.changed[key] = bookkeeping.encode_keys(expires_at, known.ids, known.digest)
        self._add(expires_at, key, {key: known})

    def put_together(self, new: Mapping[bytes, Known], expires_at: int) -> None:
        """Remember the keys of a post's messages, each with the message's id."""
        keys = list(new)
        for first in range(0, len(keys), _MOST_TOGETHER):
            part = {key: new[key] for key in keys[first : first + _MOST_TOGETHER]}
            ids = [known.ids[0] for known in part.values()]
            name = TOGETHER + ids[0].to_bytes(8, "big")
            digests = [key[1:] for key in part] + [known.digest for known in part.values()]
            self.changed[name] = bookkeeping.encode_keys(expires_at, ids, b"".join(digests))
            self._add(expires_at, name, part)

    def restore(self, remembered: list[tuple[bytes, bookkeeping.KeyRecord]]) -> None:
        """Take over the records of the store."""
        for name, record in sorted(remembered, key=lambda item: item[1].expires_at):
            count, digests = len(record.ids), record.digests
            if is_of_post(name):
                keys = [MESSAGE + digest for digest in digests[:count]]
                of_each = digests[count:] or (_UNKNOWN,) * count
                known = [Known((n,), digest) for n, digest in zip(record.ids, of_each, strict=True)]
                self._add(record.expires_at, name, dict(zip(keys, known, strict=True)))
            else:
                (digest,) = digests or (_UNKNOWN,)
                self._add(record.expires_at, name, {name: Known(record.ids, digest)})

    def _add(self, expires_at: int, name: bytes, new: Mapping[bytes, Known]) -> None:
        for key, (ids, digest) in new.items():
            numbers = b"".join([number.to_bytes(8, "little") for number in ids])
            self._known[key] = _HEAD.pack(expires_at, digest) + numbers
        self._groups.append(_Group(expires_at, name, tuple(new)))
        self._last_due = max(self._last_due, expires_at)

    def next_due(self) -> int:
        """When the first keys are forgotten."""
        return self._groups[0].expires_at if self._groups else NEVER

    def last_due(self) -> int:
        """When the last keys are forgotten; 0 where there are none."""
        return self._last_due if self._groups else 0

    def forget(self, now: int, limit: int = 1 << 62) -> None:
        """Forget about `limit` keys whose window is over."""
        groups, known = self._groups, self._known
        while groups and groups[0].expires_at <= now and limit > 0:
            expires_at, name, keys = groups.popleft()
            limit -= len(keys)
            for key in keys:
                if _HEAD.unpack_from(known[key])[0] == expires_at:
                    del known[key]
            if name not in known:  # else the key was used again, and the record is the new one's
                self.changed[name] = None
