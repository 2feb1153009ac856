"""Rates of projects that several processes share by their store.

A process lets requests in by its own buckets, reports what it spent to the store five times a
second, and takes over what the store says is left. So no request waits for the store. Over time all
processes together let in what the rate allows; at one moment each of them may let in a full bucket.
"""

import asyncio
import logging

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import Spent
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.quotas.rates import BURST, Account, Rates
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
REPORT_EVERY = 0.2
_AT_ONCE = 100


class SharedRates(BackgroundWorker):
    """Keep the buckets of this process in step with those of the store.

    While the store does not answer, this process has its `share` of each rate.
    """

    def __init__(self, rates: Rates, management: ManagementStore, *, share: float) -> None:
        self._rates = rates
        self._management = management
        self._share = share
        self._work = Background("sharing rates", self._report_all, rest=REPORT_EVERY)

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
        for bucket, tokens in zip(buckets, left, strict=True):
            bucket.left = tokens - bucket.spent  # what was spent meanwhile is reported next

    async def _report_all(self) -> float:
        await self.report()
        return REPORT_EVERY
