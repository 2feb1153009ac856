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
_MOST_WAITING = 256
_MOST_PAUSES = 10
_MAX_SITES = 10_000


@dataclass(slots=True, eq=False)
class _Way:
    """The way from one site: how many may go together, how many do, and from when on."""

    width: int = 1
    running: int = 0
    opens_at: float = 0.0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    alarm: asyncio.TimerHandle | None = None


class Pace:
    """Turns for each address: one at a time at first, and one more after each good credential.

    A refused one closes the way for a while, and then it is one at a time again. So whoever guesses
    costs the other server one call in that while, and whoever brings good credentials does not
    notice. The addresses of one IPv6 site (/64) share a way. Who waits is woken once, in its turn.
    """

    def __init__(self, per_minute: int) -> None:
        self._pause = 60 / per_minute
        self._ways: OrderedDict[str, _Way] = OrderedDict()

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
            way.width = 1
            now = time.monotonic()
            way.opens_at = min(
                max(way.opens_at, now) + self._pause, now + _MOST_PAUSES * self._pause
            )
            raise
        else:
            way.width = min(way.width + 1, WIDEST)
        finally:
            way.running -= 1
            self._wake(way)

    async def _enter(self, way: _Way) -> None:
        if len(way.waiting) >= _MOST_WAITING or way.opens_at > time.monotonic() + LONGEST:
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
        """Give turns to those who wait, the first first, or set the alarm for when that may be."""
        while way.waiting and way.running < way.width:
            wait = way.opens_at - time.monotonic()
            if wait > 0:
                if way.alarm is None:
                    way.alarm = asyncio.get_running_loop().call_later(wait, self._ring, way)
                return
            turn = way.waiting.popleft()
            if not turn.done():
                way.running += 1
                turn.set_result(None)

    def _ring(self, way: _Way) -> None:
        way.alarm = None
        self._wake(way)

    def _too_many(self, way: _Way) -> TooMany:
        wait = math.ceil(way.opens_at - time.monotonic())
        what = "Too many logins from this address failed."
        if wait <= 0:
            what = "There are too many new logins from this address at once."
        return TooMany(what, retry_after=max(1, wait))

    def _way(self, site: str) -> _Way:
        way = self._ways.setdefault(site, _Way())
        self._ways.move_to_end(site)
        if len(self._ways) > _MAX_SITES:
            self._ways.popitem(last=False)
        return way
