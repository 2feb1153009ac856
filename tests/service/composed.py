"""The services over a store, put together as the server does it, without what is around them."""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import StoreOptions
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
            Router(self.management, limits),
            limits=limits,
            clock=self.clock,
        )

    def jobs(self) -> Jobs:
        """The jobs of its queues."""
        parts = (self.management, self.queues, self.policies)
        bulk = Bulk(self.store, *parts, limits=self.limits, clock=self.clock)
        return Jobs(self.store, self.management, bulk, limits=self.limits, clock=self.clock)
