"""Rate limits of projects: how many requests and bytes a second, of reading, writing and managing.

Each is a token bucket that holds two seconds' worth. A request takes one token of the requests, and
passes if any token of the bytes is left. Its bytes may leave a debt, which later requests wait for;
so a request that is larger than the bucket passes too.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from zaqar_lite.domain.errors import TooMany, Unavailable
from zaqar_lite.domain.models import Spent
from zaqar_lite.domain.quotas import RATES, Quota
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.storage.management import ManagementStore

BURST = 2.0
"""Seconds' worth of tokens that a bucket holds."""
_MAX_PROJECTS = 10_000


READ, WRITE, MANAGE = 0, 2, 4
"""What a request does: the place of its two buckets in RATES. An enum would cost a microsecond."""


class Bucket:
    """Tokens that come back at a rate: this process's share of the project's."""

    __slots__ = ("full_rate", "left", "most", "name", "rate", "seen", "spent")

    def __init__(self, name: str, full_rate: float, share: float, now: float) -> None:
        self.name, self.full_rate, self.seen = name, full_rate, now
        self.scale(share)
        self.left = self.most
        self.spent = 0.0

    def scale(self, share: float) -> None:
        """Have another share from now on."""
        self.rate = self.full_rate * share
        self.most = max(self.rate * BURST, 1.0)

    def take_spent(self) -> float:
        """What was spent since this was asked last."""
        spent, self.spent = self.spent, 0.0
        return spent

    def look(self, now: float) -> float:
        """Add the tokens that have come back by now; answer how many there are."""
        left = self.left + (now - self.seen) * self.rate
        if left > self.most:  # noqa: PLR1730 - min() takes four times as long
            left = self.most
        self.left, self.seen = left, now
        return left


class Account(list[Bucket | None]):
    """The buckets of a project, in the order of RATES, and the quota that they are for.

    `has_spent`: whether anything was spent since it was reported last.
    """

    __slots__ = ("has_spent", "quota")

    quota: Quota
    has_spent: bool


@dataclass(eq=False, repr=False)
class RateLimits:
    """Refuse the requests of projects that are faster than their quota allows.

    `share` is the part of each rate that is for this process.
    """

    quotas: Quotas
    share: float = 1.0
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def refresh(self) -> None:
        """Take the quotas as they are now; projects whose own did not change keep their buckets."""
        of = self.quotas.of
        kept = {name: one for name, one in self._accounts.items() if one.quota == of(name)}
        self._accounts = kept

    def spend(self, project: str, kind: int, size: int) -> None:
        """Take the tokens of a request with a body of `size` bytes.

        Raises:
            TooMany: there are none; nothing was taken.
        """
        account = self._accounts.get(project)
        if account is None:
            account = self._open(project)
        requests, volume = account[kind], account[kind + 1]
        if requests is None and volume is None:
            return
        now = self.monotonic()
        account.has_spent = True
        if requests is not None:
            left = requests.look(now)
            if left < 1:
                self._refuse(requests, 1 - left)
        if volume is not None:
            left = volume.look(now)
            if left <= 0:
                self._refuse(volume, 1 - left)
            volume.left = left - size
            volume.spent += size
        if requests is not None:
            requests.left -= 1
            requests.spent += 1

    def charge(self, project: str, kind: int, size: int) -> None:
        """Take `size` bytes that were answered, whether they are there or not."""
        account = self._accounts.get(project)
        bucket = None if account is None else account[kind + 1]
        if account is not None and bucket is not None:
            account.has_spent = True
            bucket.left -= size
            bucket.spent += size

    def spenders(self) -> list[tuple[str, Account]]:
        """The projects that spent something since that was reported last."""
        return [one for one in self._accounts.items() if one[1].has_spent]

    def scale(self, share: float) -> None:
        """Have another share of all rates from now on."""
        if share == self.share:
            return
        self.share = share
        for account in self._accounts.values():
            for bucket in account:
                if bucket is not None:
                    bucket.scale(share)

    def _refuse(self, bucket: Bucket, missing: float) -> None:
        raise TooMany(
            f"The project's quota is {bucket.full_rate:g} a second ({bucket.name}).",
            retry_after=math.ceil(missing / bucket.rate),
        )

    def _open(self, project: str) -> Account:
        now, quota = self.monotonic(), self.quotas.of(project)
        account = Account(
            None if rate is None else Bucket(name, rate, self.share, now)
            for name, rate in zip(RATES, quota.rates, strict=True)
        )
        account.quota = quota
        account.has_spent = False
        if len(self._accounts) >= _MAX_PROJECTS:
            self._forget(now)
        self._accounts[project] = account
        return account

    def _forget(self, now: float) -> None:
        """Forget projects whose buckets are full, which changes nothing; if need be, others too.

        The others are the tenth that came first: not every new project costs a look at all.
        """

        def is_full(bucket: Bucket | None) -> bool:
            return bucket is None or bucket.look(now) >= bucket.most

        kept = {name: one for name, one in self._accounts.items() if not all(map(is_full, one))}
        if len(kept) >= _MAX_PROJECTS:
            for name in list(islice(kept, _MAX_PROJECTS // 10)):
                del kept[name]
        self._accounts = kept


logger = logging.getLogger(__name__)
REPORT_EVERY = 0.2
_AT_ONCE = 100


class SharedRateLimits(BackgroundWorker):
    """Keep the buckets of this process in step with those of the store.

    While the store does not answer, this process has its `share` of each rate.
    """

    def __init__(self, rates: RateLimits, management: ManagementStore, *, share: float) -> None:
        self._rates = rates
        self._management = management
        self._share = share
        self._work = Background("sharing rates", self.report, rest=REPORT_EVERY)

    async def report(self) -> None:
        """Report what was spent since the last time, and take over what is left."""
        spenders = self._rates.spenders()
        for first in range(0, len(spenders), _AT_ONCE):
            part = spenders[first : first + _AT_ONCE]
            try:
                await asyncio.gather(*(self._report(*spender) for spender in part))
            except Unavailable as exc:
                logger.debug("the rates are not shared: %s", exc)
                self._rates.scale(self._share)
                return
        self._rates.scale(1.0)

    async def _report(self, project: str, account: Account) -> None:
        account.has_spent = False
        buckets = [bucket for bucket in account if bucket is not None]
        spent = [Spent(bucket.name, bucket.full_rate, bucket.take_spent()) for bucket in buckets]
        left = await self._management.spend(project, spent, BURST)
        now = self._rates.monotonic()
        for bucket, tokens in zip(buckets, left, strict=True):
            bucket.left = tokens - bucket.spent  # what was spent meanwhile is reported next
            bucket.seen = now  # the store has added what came back until now
