"""How fast credentials that nobody knows yet are taken to a server elsewhere."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from zaqar_lite.domain.errors import TooMany, Unauthenticated
from zaqar_lite.service.identity.failures import site_of

WIDEST = 16
"""Credentials of one address that are looked at together, at most."""
LONGEST = 3.0
"""Seconds that a request waits for its turn."""
_MOST_WAITING = 256
_MOST_PAUSES = 10
_MAX_SITES = 10_000


@dataclass(slots=True, eq=False)
class _Way:
    """The way from one site: how many may go together, how many do, and from when on."""

    width: int = 1
    running: int = 0
    waiting: int = 0
    opens_at: float = 0.0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class Pace:
    """Turns for each address: one at a time at first, and one more after each good credential.

    A refused one closes the way for a while, and then it is one at a time again. So whoever guesses
    costs the other server one call in that while, and whoever brings good credentials does not
    notice. The addresses of one IPv6 site (/64) share a way.
    """

    def __init__(self, per_minute: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pause = 60 / per_minute
        self._monotonic = monotonic
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
            now = self._monotonic()
            way.opens_at = min(
                max(way.opens_at, now) + self._pause, now + _MOST_PAUSES * self._pause
            )
            raise
        else:
            way.width = min(way.width + 1, WIDEST)
        finally:
            way.running -= 1
            async with way.changed:
                way.changed.notify_all()

    async def _enter(self, way: _Way) -> None:
        until = self._monotonic() + LONGEST
        if way.waiting >= _MOST_WAITING or way.opens_at > until:
            raise self._too_many(way)
        way.waiting += 1
        try:
            async with way.changed:
                while (now := self._monotonic()) < way.opens_at or way.running >= way.width:
                    if now >= until:
                        raise self._too_many(way)
                    next_look = min(until, way.opens_at) if now < way.opens_at else until
                    try:
                        await asyncio.wait_for(way.changed.wait(), next_look - now)
                    except TimeoutError:
                        continue
                way.running += 1
        finally:
            way.waiting -= 1

    def _too_many(self, way: _Way) -> TooMany:
        wait = math.ceil(way.opens_at - self._monotonic())
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
