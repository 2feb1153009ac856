"""The bodies of the latest messages, kept for those who will ask."""

from collections import deque
from collections.abc import Sequence

_OVERHEAD = 150


class Bodies:
    """The bodies of the latest messages, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._order: deque[tuple[int, int, int]] = deque()  # first id, how many, bytes
        self._bodies: dict[int, bytes] = {}
        self.get = self._bodies.get
        """The body of a message id, or None."""

    def keep(self, first: int, bodies: Sequence[bytes]) -> None:
        """Keep the bodies of ids in a row until others need the room."""
        count = len(bodies)
        size = sum(map(len, bodies)) + count * _OVERHEAD
        self._bodies.update(zip(range(first, first + count), bodies, strict=True))
        self._order.append((first, count, size))
        self._size += size
        while self._size > self._limit:
            oldest, count, size = self._order.popleft()
            for message_id in range(oldest, oldest + count):
                self._bodies.pop(message_id, None)
            self._size -= size

    def forget(self, message_id: int) -> None:
        """Forget the body of a message that is gone."""
        self._bodies.pop(message_id, None)
