"""The numbers of RFC 0001 behind the ids of messages, and what of them an entry's record says.

A message's number names its payload and its entry of the metadata log; it is the number of its
body's row. The id of a message is 32 hex digits: 16 of a number, and 16 of a keyed hash of it. The
hash serves as the random part of an id without being stored: without the store's secret, a client
can't name a message that it was never given.
"""

from hashlib import blake2b
from typing import NamedTuple


class Shown(NamedTuple):
    """The number that stands for a message's id in one queue.

    It is the message's number, or the position where the entry is a copy (`is_renamed`). `is_kept`
    says that the id is not made of it, and so has a record of its own.
    """

    number: int
    is_renamed: bool = False
    is_kept: bool = False


class Ids:
    """The ids of numbers, under the secret of a store."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._hash = blake2b(key=secret, digest_size=8)

    def of(self, number: int) -> bytes:
        """The id that is made of a number."""
        digits = number.to_bytes(8, "big")
        keyed = self._hash.copy()
        keyed.update(digits)
        return digits + keyed.digest()

    def is_ours(self, message_id: bytes) -> bool:
        """Whether an id is made of the number that it begins with."""
        return self.of(number_in(message_id)) == message_id

    def shown(
        self, message_id: bytes, position: int, number: int, is_shared: int, moved: int
    ) -> Shown:
        """The number that stands for an entry's id; `number` is that of its message."""
        if not moved:
            return Shown(position, is_renamed=position != number)
        begins = number_in(message_id)
        if begins in {number, position} and self.is_ours(message_id):
            return Shown(begins, is_renamed=begins != number)
        if is_shared:  # a copy that was moved, or has an id that its original had elsewhere
            return Shown(position, is_renamed=position != number, is_kept=True)
        return Shown(number, is_kept=True)

    def history(self, message_id: bytes, number: int) -> int:
        """The number in the keys of a message's attempts; `number` is that of its body."""
        return number_in(message_id) if self.is_ours(message_id) else number


def number_in(message_id: bytes) -> int:
    """The number that an id begins with."""
    return int.from_bytes(message_id[:8], "big")
