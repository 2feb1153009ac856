"""How often each address may fail to log in, and how fast its credentials are looked up."""

import asyncio
import ipaddress
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import uniform

from zaqar_lite.domain.errors import TooMany, Unauthenticated
from zaqar_lite.service.caching import Cache

_MAX_ADDRESSES = 10_000
_LATELY = 60.0
"""Seconds after its last failure for which an address counts as one that failed lately."""
_IPV6_SITE = 64


class LoginThrottle:
    """A token bucket for each address.

    A try takes a token and gives it back when it was good, so tries that are under way count too.
    The addresses of one IPv6 site (/64) share a bucket. Only the addresses that failed last are
    remembered; forgetting one can only let it try sooner.
    """

    def __init__(self, per_minute: int) -> None:
        self._rate = per_minute / 60
        self._most = max(per_minute / 2, 1.0)
        self._buckets: Cache[str, tuple[float, float]] = Cache(_MAX_ADDRESSES)

    def take(self, address: str) -> float:
        """Take a token; answer 0, or how many seconds to wait because there was none."""
        site, left, now = self._look(address)
        if left >= 1:
            self._keep(site, left - 1, now)
        return self._wait_for(left)

    def wait_of(self, address: str) -> float:
        """How many seconds to wait for a token; 0 where one is there."""
        return self._wait_for(self._look(address)[1])

    def has_failed(self, address: str) -> bool:
        """Tell whether the address took a token lately, and did not give it back."""
        found = self._buckets.get(site_of(address))
        return found is not None and time.monotonic() - found[1] < _LATELY

    def give_back(self, address: str) -> None:
        """Give a token back: the try was good."""
        site, left, now = self._look(address)
        self._keep(site, min(left + 1, self._most), now)

    def _wait_for(self, left: float) -> float:
        return max(0.0, (1 - left) / self._rate)

    def _look(self, address: str) -> tuple[str, float, float]:
        site, now = site_of(address), time.monotonic()
        left, seen = self._buckets.get(site, (self._most, now))
        return site, min(self._most, left + (now - seen) * self._rate), now

    def _keep(self, site: str, left: float, now: float) -> None:
        if left >= self._most:
            self._buckets.pop(site, None)
            return
        self._buckets[site] = (left, now)


def site_of(address: str) -> str:
    """The address, or the IPv6 site that it is of: what counts as one client.

    A socket that takes both writes an IPv4 address inside an IPv6 one, all of which have one site.
    """
    if ":" not in address:
        return address
    try:
        known = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(known.ipv4_mapped or ipaddress.ip_network((known, _IPV6_SITE), strict=False))


WIDEST = 16
"""Credentials of one address that are checked at the same time, at most."""
LONGEST = 3.0
"""Seconds that a request waits for its turn, at most."""
SUSPECTED = 600.0
"""Seconds for which an address is suspected after a refusal, unless a good one comes."""
_MOST_WAITING = 256
_MOST_PAUSES = 10
_MAX_SITES = 10_000


@dataclass(eq=False)
class _Site:
    """One address: the turns that it has at a time, and how many requests wait for theirs."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    width: int = 1
    waiting: int = 0
    suspected_until: float = float("-inf")

    @property
    def is_suspected(self) -> bool:
        return time.monotonic() < self.suspected_until

    def widen(self) -> None:
        """Have one turn more at a time: a credential was good."""
        if self.width < WIDEST:
            self.width += 1
            self.turns.release()

    def suspect(self) -> None:
        """Have one turn at a time again: a credential was refused."""
        self.suspected_until = time.monotonic() + SUSPECTED
        self.turns, self.width = asyncio.Semaphore(1), 1


class LookupLimits:
    """Turns for each address: one at a time at first, and one more after each good credential.

    An address whose last credential was refused is suspected. All suspected addresses share one
    turn in each pause, one address after the other, and every refusal takes a pause of its own. So
    guesses, from however many addresses, cost the other server one call in that time, and one more
    for each address. Good credentials from elsewhere are not slowed down. The addresses of one IPv6
    site (/64) count as one.
    """

    def __init__(self, per_minute: int) -> None:
        self._pause = 60 / per_minute
        self._sites: Cache[str, _Site] = Cache(_MAX_SITES)
        self._suspects = asyncio.Lock()
        self._opens_at = float("-inf")

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn, and learn from how the block ends.

        Raises:
            TooMany: too many wait already, or it would take too long.
        """
        name = site_of(address)
        site = self._sites[name] = self._sites.get(name) or _Site()
        turns = await self._enter(site)
        try:
            yield
        except Unauthenticated:
            if not site.is_suspected:  # else its turn has taken the pause
                self._take_pause()
            site.suspect()
            raise
        else:
            if site.is_suspected:
                self._opens_at -= self._pause
            site.suspected_until = float("-inf")
            site.widen()
        finally:
            turns.release()

    async def _enter(self, site: _Site) -> asyncio.Semaphore:
        too_late = site.is_suspected and self._opens_at > time.monotonic() + LONGEST
        if site.waiting >= _MOST_WAITING or too_late:
            raise self._too_many(site)
        site.waiting += 1
        turns = site.turns
        try:
            # With jitter, or all that came together would give up at the same instant.
            async with asyncio.timeout(LONGEST * uniform(0.5, 1)):  # noqa: S311 - jitter
                await turns.acquire()
                try:
                    if site.is_suspected:
                        await self._enter_suspected()
                except BaseException:
                    turns.release()
                    raise
        except TimeoutError:
            raise self._too_many(site) from None
        finally:
            site.waiting -= 1
        return turns

    async def _enter_suspected(self) -> None:
        """Wait for the turn that all suspected addresses share; each has one request in line."""
        async with self._suspects:
            await asyncio.sleep(max(self._opens_at - time.monotonic(), 0))
            self._take_pause()

    def _take_pause(self) -> None:
        now = time.monotonic()
        self._opens_at = min(
            max(self._opens_at, now) + self._pause, now + _MOST_PAUSES * self._pause
        )

    def _too_many(self, site: _Site) -> TooMany:
        what, wait = "There are too many new logins from this address at once.", 0
        if site.is_suspected:
            what = "Too many logins from this address failed."
            wait = math.ceil(self._opens_at - time.monotonic())
        return TooMany(what, retry_after=max(1, wait))
