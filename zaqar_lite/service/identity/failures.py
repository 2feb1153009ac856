"""How often each address may fail to log in, in a minute."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

_MAX_ADDRESSES = 10_000
_LATELY = 60.0
"""Seconds after its last failure for which an address counts as one that failed lately."""
_IPV6_SITE = 64


class Failures:
    """A token bucket for each address.

    A try takes a token and gives it back when it was good, so tries that are under way count too.
    The addresses of one IPv6 site (/64) share a bucket. Only the addresses that failed last are
    remembered; forgetting one can only let it try sooner.
    """

    def __init__(self, per_minute: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._most = max(per_minute / 2, 1.0)
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Take a token; answer 0, or how many seconds to wait because there was none."""
        site, left, now = self._look(address)
        if left >= 1:
            self._keep(site, left - 1, now)
        return self._lack(left)

    def lack(self, address: str) -> float:
        """How many seconds to wait for a token; 0 where one is there."""
        return self._lack(self._look(address)[1])

    def has_failed(self, address: str) -> bool:
        """Tell whether the address took a token lately, and did not give it back."""
        found = self._buckets.get(site_of(address))
        return found is not None and self._monotonic() - found[1] < _LATELY

    def give_back(self, address: str) -> None:
        """Give a token back: the try was good."""
        site, left, now = self._look(address)
        self._keep(site, min(left + 1, self._most), now)

    def _lack(self, left: float) -> float:
        return max(0.0, (1 - left) / self._rate)

    def _look(self, address: str) -> tuple[str, float, float]:
        site, now = site_of(address), self._monotonic()
        left, seen = self._buckets.get(site, (self._most, now))
        return site, min(self._most, left + (now - seen) * self._rate), now

    def _keep(self, site: str, left: float, now: float) -> None:
        if left >= self._most:
            self._buckets.pop(site, None)
            return
        self._buckets[site] = (left, now)
        self._buckets.move_to_end(site)
        if len(self._buckets) > _MAX_ADDRESSES:
            self._buckets.popitem(last=False)


def site_of(address: str) -> str:
    """The address, or the IPv6 site that it is of: what counts as one client."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network(f"{address.partition('%')[0]}/{_IPV6_SITE}", strict=False))
    except ValueError:
        return address
