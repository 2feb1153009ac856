"""Message ids: a durable counter, and the text that shows an id to clients."""

from hashlib import blake2b

from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.bookkeeping import encode_block

BLOCK_SIZE = 4096


class Ids:
    """Ids from blocks that are durable before their first use, or with it.

    A crash skips the rest of a block: ids are never used twice. The sequences of the metadata log
    are the same numbers, so a message's id finds its metadata.
    """

    def __init__(self, end: int) -> None:
        self.next = end
        self._end = end
        self._is_stored = True
        self._size = 0

    def take(self, count: int, puts: dict[bytes, bytes]) -> int:
        """Take `count` ids in a row; answer the first. A new block goes into `puts`."""
        first = self.next
        self.next = first + count
        if self.next > self._end:
            base, self._size = self._end, max(BLOCK_SIZE, self.next - self._end)
            self._end = base + self._size
            self._put(puts)
        elif not self._is_stored:
            self._put(puts)
        return first

    def forget_stored(self) -> None:
        """Write the block once more with the next ids: the batch that held it failed."""
        self._is_stored = self._size == 0

    def reserve(self, message_id: int) -> None:
        """Never hand out ids up to `message_id`, which somebody else used."""
        if message_id >= self.next:
            self.next = message_id + 1

    def _put(self, puts: dict[bytes, bytes]) -> None:
        block = encode_block(self._end - self._size, self._size)
        puts[keys.ID_BLOCK] = puts[keys.LOG_BLOCK] = block
        self._is_stored = True


class Names:
    """The text of ids: 16 hex digits of the number, 16 of a keyed hash of it.

    The hash stands for the random bits of an id without being stored: who does not know the
    store's secret cannot name a message that was not told to him.
    """

    def __init__(self, secret: bytes) -> None:
        self._hash = blake2b(key=secret, digest_size=8)

    def write(self, number: int) -> str:
        """The text of a number."""
        digits = number.to_bytes(8, "big")
        keyed = self._hash.copy()
        keyed.update(digits)
        return digits.hex() + keyed.hexdigest()

    def read(self, text: str) -> int | None:
        """The number of a text; None when it is none of ours."""
        try:
            number = int(text[:16], 16)
        except ValueError:
            return None
        return number if number >= 0 and self.write(number) == text else None
