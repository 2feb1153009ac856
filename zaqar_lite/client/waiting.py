"""How a call waits for messages: in requests that wait, or by asking again and again."""

import math
import random
import time

from zaqar_lite.client.errors import BadRequest

LONGEST = 20
"""Seconds that one request waits at most: proxies cut what is silent for a minute."""
POLL = 1.0
"""Seconds between two requests to a server that does not wait."""


class Waiting:
    """One call's wait of so many seconds, in requests of at most `longest`.

    A server that does not know `wait` (OpenStack's Zaqar) answers at once that there is nothing:
    then the call sleeps about `poll` seconds before it asks again.
    """

    def __init__(self, seconds: float, *, longest: int = LONGEST, poll: float = POLL) -> None:
        self._until = time.monotonic() + seconds
        self.longest = longest
        self._poll = poll
        self._asked = 0
        self._asked_at = 0.0

    def next(self) -> int:
        """Return how many seconds the next request shall wait."""
        self._asked_at = time.monotonic()
        left = max(0.0, self._until - self._asked_at)
        self._asked = math.ceil(min(self.longest, left))
        return self._asked

    def pause(self) -> float | None:
        """Return the seconds to sleep after an empty answer; None when the time is over."""
        now = time.monotonic()
        left = self._until - now
        if left <= 0:
            return None
        if self._asked and now - self._asked_at >= 0.9 * self._asked:
            return 0.0
        return min(left, random.uniform(0, 2 * self._poll))  # noqa: S311 - jitter, not a secret

    def shorten(self, error: BadRequest) -> bool:
        """Return whether to ask again with a shorter wait: the server may allow less."""
        if not self._asked or "'wait'" not in (error.description or ""):
            return False
        self.longest = self._asked // 2
        return True
