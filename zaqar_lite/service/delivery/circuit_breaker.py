"""How fast the server calls each endpoint: it has a window and a breaker.

An endpoint is a scheme, a host and a port, for one project. Its window begins at 2 calls at a time,
doubles with each round of successes up to 64, and halves on 429, 5xx and silence. After five
failures in a row the breaker opens: nothing is sent for a while, and then one call tries. The while
doubles from 10 s to 10 min.
"""

import asyncio
import time
from collections import OrderedDict, deque
from enum import Enum
from itertools import islice
from random import uniform
from urllib.parse import urlsplit

_FIRST_WINDOW = 2
_LARGEST_WINDOW = 64
_MOST_WAITING = 1_000
_FIRST_PATIENCE = 0.25
"""Seconds for which a delivery waits for an endpoint of which nothing is known yet."""
_FAILURES = 5
_SHORTEST = 10.0
_LONGEST = 600.0
_MAX_CACHED = 10_000


class Health(Enum):
    """What is known of an endpoint: nothing yet, that it answers, or that it fails."""

    NEW = "new"
    GOOD = "good"
    FAILING = "failing"


class Endpoint:
    """One endpoint: its window, the deliveries that wait for a place in it, and its breaker."""

    def __init__(self) -> None:
        self.health = Health.NEW
        self.window = _FIRST_WINDOW
        self.under_way = 0
        self.failures = 0
        self.opened_until = 0.0
        self._round = 0
        self._pause = _SHORTEST
        self._waiting: deque[asyncio.Future[bool]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nobody calls it or waits for it."""
        return not self.under_way and not self._waiting

    def closed_for(self) -> float:
        """Seconds until the breaker lets a call through; 0 when it does."""
        return max(self.opened_until - time.monotonic(), 0.0)

    async def enter(self, seconds: float) -> bool:
        """Take a place in the window, waiting for one if need be; answer whether there was one.

        No delivery waits for an endpoint that is failing, and none waits long for one that was
        never called: meanwhile it would keep a place from messages for other endpoints.
        """
        if self.closed_for():
            return False
        if self.failures >= _FAILURES and self.under_way:
            return False  # this call tries whether it answers again
        if self.under_way < self.window:
            self.under_way += 1
            return True
        if self.health is Health.FAILING or len(self._waiting) >= _MOST_WAITING:
            return False
        if self.health is Health.NEW:
            seconds = min(seconds, _FIRST_PATIENCE)
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(seconds):
                return await place
        except TimeoutError:
            return _has_come(place)
        except asyncio.CancelledError:
            if _has_come(place):
                self.leave(None)
            raise

    def leave(self, succeeded: bool | None, *, is_slow: bool = False) -> None:
        """Give a place back: the call succeeded, failed, or said nothing of the endpoint (None)."""
        self.under_way -= 1
        if succeeded:
            self._succeeded()
        elif succeeded is not None:
            self._failed(is_slow=is_slow)
        while self._waiting and self.under_way < self.window and not self.closed_for():
            place = self._waiting.popleft()
            if not place.done():
                self.under_way += 1
                place.set_result(True)

    def _succeeded(self) -> None:
        self.health = Health.GOOD
        self.failures = 0
        self._pause = _SHORTEST
        self._round += 1
        if self._round >= self.window:
            self._round = 0
            self.window = min(self.window * 2, _LARGEST_WINDOW)

    def _failed(self, *, is_slow: bool) -> None:
        self.health = Health.FAILING
        self.failures += 1
        self._round = 0
        if is_slow:
            self.window = max(self.window // 2, 1)
        if self.failures >= _FAILURES:
            self.opened_until = time.monotonic() + self._pause * uniform(0.8, 1.2)  # noqa: S311
            self._pause = min(self._pause * 2, _LONGEST)
        while self._waiting:  # those that wait are tried later, as it does not answer
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(False)


class Endpoints:
    """All endpoints that were called lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Endpoint] = OrderedDict()

    def of(self, project: str, subscriber: str) -> Endpoint:
        """The endpoint of a subscriber."""
        parts = urlsplit(subscriber)
        key = project, f"{parts.scheme}://{parts.netloc.lower()}"
        found = self._known.get(key)
        if found is None:
            self._forget_idle()
            found = self._known[key] = Endpoint()
        self._known.move_to_end(key)
        return found

    def _forget_idle(self) -> None:
        """Make room for one more: forget those among the idle ones that were called longest ago."""
        excess = len(self._known) + 1 - _MAX_CACHED
        if excess > 0:
            idle = (key for key, one in self._known.items() if one.is_idle)
            for key in tuple(islice(idle, excess)):
                del self._known[key]


def _has_come(place: asyncio.Future[bool]) -> bool:
    return place.done() and not place.cancelled() and place.result()
