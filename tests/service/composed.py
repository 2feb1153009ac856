"""The services over a store, put together as the server does it, without what is around them."""

from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import Record, StoreOptions
from zaqar_lite.service.jobs.bulk import Bulk
from zaqar_lite.service.jobs.jobs import Jobs
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.routing import Router
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create


class Composed:
    """The services of one process; the stores are in memory unless they are given."""

    def __init__(
        self,
        clock: Clock | None = None,
        stores: tuple[MessageStore, ManagementStore] | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.limits = limits = Limits()
        self.store, self.management = stores or create(
            "memory://", clock=self.clock, options=StoreOptions()
        )
        self.policies = Policies(self.management, limits, checked=True)
        self.queues = Queues(self.management, self.store, self.policies, limits)
        self.messages = Messages(
            self.store,
            self.queues,
            self.policies,
            Router(self.policies),
            limits=limits,
            clock=self.clock,
        )

    def jobs(self) -> Jobs:
        """The jobs of its queues."""
        parts = (self.management, self.queues, self.policies)
        bulk = Bulk(self.store, *parts, limits=self.limits, clock=self.clock)
        return Jobs(self.store, self.management, bulk, limits=self.limits, clock=self.clock)


class Failing:
    """A store whose write number `fails_at` fails, and each one after it while `stays_away`."""

    def __init__(self, store: ManagementStore) -> None:
        self._store = store
        self.fails_at, self.writes, self.stays_away = 0, 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _write(self) -> None:
        self.writes += 1
        if self.writes == self.fails_at or (self.stays_away and self.writes > self.fails_at > 0):
            raise Unavailable("The store is away.")

    async def put_record(self, *args: Any, **more: Any) -> Record:
        self._write()
        return await self._store.put_record(*args, **more)

    async def delete_record(self, *args: Any, **more: Any) -> bool:
        self._write()
        return await self._store.delete_record(*args, **more)

    async def update_queue(self, *args: Any, **more: Any) -> None:
        self._write()
        await self._store.update_queue(*args, **more)
