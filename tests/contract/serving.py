"""The services of one server over the stores under test, and servers that race."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import cycle
from typing import TypeVar

from tests.contract.stores import Stores
from tests.service.composed import Composed
from zaqar_lite.domain.quotas import UNLIMITED, Quota
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.topics import Topics

Key = TypeVar("Key")
Made = TypeVar("Made")


class Server(Composed):
    """The services over one server's stores."""

    def __init__(
        self, stores: Stores, quota: Quota = UNLIMITED, *, most_per_queue: int = 200
    ) -> None:
        super().__init__(stores.clock, (stores.messages, stores.management))
        self.subscribers = SubscriberCache(self.management)
        self.subscriptions = Subscriptions(
            self.management,
            self.queues,
            self.policies,
            self.subscribers,
            confirmations=None,
            limits=replace(self.limits, max_subscriptions_per_queue=most_per_queue),
            clock=self.clock,
            refused={},
            quota_of=lambda _: quota,
        )

    @cached_property
    def topics(self) -> Topics:
        """The topics."""
        return Topics(self.management, self.store, limits=self.limits, clock=self.clock)


async def race(
    makes: Sequence[Callable[[Key], Awaitable[Made]]],
    keys: Iterable[Key],
    refusal: type[Exception] | None = None,
) -> list[Made]:
    """Make all at once, by all servers in turn; answer what those got that were let in."""
    outcomes = await asyncio.gather(
        *(make(key) for make, key in zip(cycle(makes), keys, strict=False)), return_exceptions=True
    )
    refused = [one for one in outcomes if isinstance(one, BaseException)]
    assert [one for one in refused if type(one) is not refusal] == []
    return [one for one in outcomes if not isinstance(one, BaseException)]
