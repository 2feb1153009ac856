"""Long work is done in steps, so that other requests wait for at most one step of it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
STEP = 500
"""How many messages one step reads, checks or prepares: 1 to 3 ms."""
_FIRST = 20
"""Messages of a job's first step; each later step may be twice as large."""
_LONG = 1.0
"""Seconds. After a longer step the next is smaller, so that a job renews its lease in time."""
_BESIDE, _REST = 20, 3.0
"""While there are other requests: messages of a step, and the rest as a multiple of its time."""
_OTHERS, _WHILE = 5, 2.0
"""So many requests in a second count as other requests, for so many seconds afterwards."""


def cut(items: Sequence[T]) -> Sequence[tuple[int, Sequence[T]]]:
    """Cut items into steps; each is the index of its first item, and its items."""
    return [(first, items[first : first + STEP]) for first in range(0, len(items), STEP)]


class Pace:
    """Decides how large a job's next step may be, and how long the job rests after it.

    `asked` returns how many requests for messages and claims this process has had. `heed` is called
    when other processes have requests.
    """

    def __init__(self, asked: Callable[[], int], now: float) -> None:
        self._asked = asked
        self._seen, self._since = asked(), now
        self._beside_until = 0.0
        self._most = _FIRST
        self.is_alone = True

    def is_asked(self, now: float) -> bool:
        """Whether this process has had many requests since this was last asked."""
        asked = self._asked()
        is_asked = asked - self._seen >= _OTHERS
        if is_asked or now - self._since > 1:
            self._seen, self._since = asked, now
        return is_asked

    def heed(self, now: float) -> None:
        """Assume other requests for a while."""
        self._beside_until = now + _WHILE

    def most(self, now: float) -> int:
        """How many messages the next step may look at."""
        if self.is_asked(now):
            self.heed(now)
        self.is_alone = now >= self._beside_until
        return self._most if self.is_alone else min(self._most, _BESIDE)

    def rest(self, took: float) -> float:
        """How long to rest after a step that took `took` seconds, in seconds."""
        self._most = max(1, self._most // 2) if took > _LONG else min(STEP, self._most * 2)
        return 0.0 if self.is_alone else min(_LONG, took * _REST)
