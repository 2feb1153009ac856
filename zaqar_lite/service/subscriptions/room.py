"""Room for a new subscription: in its queue, and in its project's quota."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, QuotaReached
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.quotas import QuotaOf
from zaqar_lite.domain.subscriptions import KIND, Subscription
from zaqar_lite.service.quotas.reservations import Bound, Reservations
from zaqar_lite.service.records import count_records
from zaqar_lite.service.subscriptions.subscribers import subscription_ids
from zaqar_lite.storage.management import ManagementStore


class Room:
    """Hold room for subscriptions while they are made, so that racing requests exceed no bound."""

    def __init__(
        self, management: ManagementStore, clock: Clock, limits: Limits, quota_of: QuotaOf
    ) -> None:
        self._management = management
        self._limits = limits
        self._quota_of = quota_of
        self._reservations = Reservations(management, clock, is_there=self._is_there)

    @asynccontextmanager
    async def held_for(
        self, made: Subscription, undo: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Hold room for a subscription while it is made; if that takes too long, `undo` it.

        Raises:
            LimitReached: its queue has as many subscriptions as a queue may have.
            QuotaReached: its project has as many as its quota allows.
            Unavailable: others have been making subscriptions for too long.
        """
        bounds = [self._of_queue(made.queue)]
        quota = self._quota_of(made.queue.project).subscriptions
        if quota is not None:
            bounds.append(self._of_project(made.queue.project, quota))
        async with AsyncExitStack() as stack:
            for bound in bounds:
                await stack.enter_async_context(self._reservations.room(bound, made.name, undo))
            yield

    async def count(self, project: str, most: int) -> int:
        """Count the live subscriptions of a project, up to `most`."""
        return await count_records(self._management, KIND, project, most=most)

    def _of_queue(self, queue: QueueRef) -> Bound:
        async def count(most: int) -> int:
            return len(await subscription_ids(self._management, queue, most=most))

        most = self._limits.max_subscriptions_per_queue
        full = LimitReached(f"The queue has {most} subscriptions, as many as it may have.")
        return Bound(queue.project, f"subscriptions/{queue.name}", most, count, full)

    def _of_project(self, project: str, quota: int) -> Bound:
        full = QuotaReached(
            f"The project has {quota} subscriptions, as many as its quota allows: end some, or "
            "ask the operator of this server for more."
        )
        return Bound(project, "subscriptions", quota, partial(self.count, project), full)

    async def _is_there(self, project: str, name: str) -> bool:
        return await self._management.get_record(KIND, project, name) is not None
