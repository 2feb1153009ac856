"""How fast credentials that nobody knows yet are taken to a server elsewhere."""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import uniform

from zaqar_lite.domain.errors import TooMany, Unauthenticated
from zaqar_lite.service.identity.failures import site_of

WIDEST = 16
"""Credentials of one address that are looked at together, at most."""
LONGEST = 3.0
"""Seconds that a request waits for its turn, at most."""
SUSPECTED = 600.0
"""Seconds for which an address is suspected after a refusal, unless a good one comes."""
_MOST_WAITING = 256
_MOST_PAUSES = 10
_MAX_SITES = 10_000


@dataclass(slots=True, eq=False)
class _Way:
    """The way from one site: how many may go together, how many do, and who waits."""

    width: int = 1
    running: int = 0
    suspected_until: float = float("-inf")
    is_queued: bool = False
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def is_suspected(self) -> bool:
        return time.monotonic() < self.suspected_until


class Pace:
    """Turns for each address: one at a time at first, and one more after each good credential.

    An address whose last credential was refused is suspected. All that are suspected share one
    turn in each pause, address by address, and every refusal takes a pause of its own. So whoever
    guesses, from however many addresses, costs the other server one call in that time and one
    more for each address; whoever brings good credentials from elsewhere does not notice. The
    addresses of one IPv6 site (/64) share a way. Who waits is woken once, in its turn.
    """

    def __init__(self, per_minute: int) -> None:
        self._pause = 60 / per_minute
        self._ways: OrderedDict[str, _Way] = OrderedDict()
        self._suspects: deque[_Way] = deque()
        self._opens_at = float("-inf")
        self._alarm: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn, and learn from how the block ends.

        Raises:
            TooMany: too many wait already, or it would take too long.
        """
        way = self._way(site_of(address))
        await self._enter(way)
        try:
            yield
        except Unauthenticated:
            if not way.is_suspected:  # else its turn has taken the pause
                self._take_pause()
            way.width = 1
            way.suspected_until = time.monotonic() + SUSPECTED
            raise
        else:
            if way.is_suspected:
                self._opens_at -= self._pause
            way.suspected_until = float("-inf")
            way.width = min(way.width + 1, WIDEST)
        finally:
            way.running -= 1
            self._wake(way)

    async def _enter(self, way: _Way) -> None:
        too_late = way.is_suspected and self._opens_at > time.monotonic() + LONGEST
        if len(way.waiting) >= _MOST_WAITING or too_late:
            raise self._too_many(way)
        turn = asyncio.get_running_loop().create_future()
        way.waiting.append(turn)
        self._wake(way)
        try:
            # Those who came together do not all leave at the same instant.
            async with asyncio.timeout(LONGEST * uniform(0.5, 1)):  # noqa: S311 - jitter
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():  # it came just then
                way.running -= 1
                self._wake(way)
            elif turn in way.waiting:
                way.waiting.remove(turn)
            if isinstance(exc, TimeoutError):
                raise self._too_many(way) from None
            raise

    def _wake(self, way: _Way) -> None:
        """Give turns to those who wait, the first first; suspects get theirs among each other."""
        if not way.is_suspected:
            while way.running < way.width and self._give(way):
                pass
        elif way.waiting and not way.running and not way.is_queued:
            way.is_queued = True
            self._suspects.append(way)
            self._wake_suspects()

    def _wake_suspects(self) -> None:
        """Give the next suspect its turn, or set the alarm for when that may be."""
        while self._suspects:
            wait = self._opens_at - time.monotonic()
            if wait > 0:
                if self._alarm is None:
                    self._alarm = asyncio.get_running_loop().call_later(wait, self._ring)
                return
            way = self._suspects.popleft()
            way.is_queued = False
            if not way.is_suspected:
                self._wake(way)
            elif self._give(way):
                self._take_pause()

    def _ring(self) -> None:
        self._alarm = None
        self._wake_suspects()

    def _give(self, way: _Way) -> bool:
        """Give a turn to the first who still waits, if anybody does."""
        while way.waiting:
            turn = way.waiting.popleft()
            if not turn.done():
                way.running += 1
                turn.set_result(None)
                return True
        return False

    def _take_pause(self) -> None:
        now = time.monotonic()
        self._opens_at = min(
            max(self._opens_at, now) + self._pause, now + _MOST_PAUSES * self._pause
        )

    def _too_many(self, way: _Way) -> TooMany:
        what, wait = "There are too many new logins from this address at once.", 0
        if way.is_suspected:
            what = "Too many logins from this address failed."
            wait = math.ceil(self._opens_at - time.monotonic())
        return TooMany(what, retry_after=max(1, wait))

    def _way(self, site: str) -> _Way:
        way = self._ways.setdefault(site, _Way())
        self._ways.move_to_end(site)
        if len(self._ways) > _MAX_SITES:
            self._ways.popitem(last=False)
        return way
