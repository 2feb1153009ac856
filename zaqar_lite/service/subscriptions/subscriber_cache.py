"""All subscriptions of a queue, as its deliveries need them: they may be a second old."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.domain.subscriptions import KIND, Subscription
from zaqar_lite.domain.topics import KIND as TOPIC
from zaqar_lite.domain.topics import is_topic, name_of
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.records import Kind, all_records
from zaqar_lite.storage.management import ManagementStore

_MAX_CACHED = 1_000
_PAGE = 200
_FRESH = 1.0
"""Seconds after which another process's change is seen at the latest; its own is seen at once."""


def subscription_kind(
    management: ManagementStore, clock: Clock | None = None
) -> Kind[Subscription]:
    """The records of subscriptions; who writes them gives a clock."""

    def lives(subscription: Subscription) -> int | None:
        now = 0 if clock is None else clock.now_ms()
        return max(subscription.renewed_at + subscription.ttl * 1000 - now, 1)

    return Kind(
        management,
        KIND,
        "Subscription",
        encode=Subscription.encode,
        reads=Subscription.decode,
        lives=lives,
    )


async def list_subscriptions(
    management: ManagementStore, queue: QueueRef
) -> Sequence[Subscription]:
    """List the live subscriptions of a queue."""
    kind = subscription_kind(management)
    return await kind.page(queue.project, None, None, prefix=f"{queue.name}/")


async def subscription_ids(
    management: ManagementStore, queue: QueueRef, *, most: int | None = None
) -> Sequence[str]:
    """Name the live subscriptions of a queue, up to `most`, without reading what is in them."""
    found: list[str] = []
    after = queue.project, f"{queue.name}/"
    async for record in all_records(
        management, KIND, queue.project, after=after, most=most, page_size=_PAGE
    ):
        if not record.name.startswith(after[1]):
            break
        found.append(record.name.removeprefix(after[1]))
    return found


async def record_of(management: ManagementStore, queue: QueueRef) -> QueueRecord | Record | None:
    """The record of a queue or of a topic: subscriptions that come and go change its version."""
    if is_topic(queue):
        return await management.get_record(TOPIC, queue.project, name_of(queue))
    return await management.get_queue(queue)


class _Known(NamedTuple):
    at: float
    version: int
    subscriptions: Sequence[Subscription]


class SubscriberCache:
    """Answer the subscriptions of a queue without asking the store for every message."""

    def __init__(self, management: ManagementStore) -> None:
        self._management = management
        self._kind = subscription_kind(management)
        self._cache: Cache[QueueRef, _Known] = Cache(_MAX_CACHED)
        self._changes = 0
        self._ended: Cache[tuple[str, int], None] = Cache(_MAX_CACHED)

    def forget(self, queue: QueueRef) -> None:
        """Ask again: a subscription of this queue was changed by this process."""
        self._changes += 1
        self._cache.pop(queue, None)

    def end(self, subscription: Subscription) -> None:
        """Send nothing more to a subscription that this process has just ended.

        Another one may have its id later, where its name was left behind.
        """
        self._ended[subscription.id, subscription.created_at] = None

    def has_ended(self, subscription: Subscription) -> bool:
        """Tell whether this process ended a subscription since it was read."""
        return (subscription.id, subscription.created_at) in self._ended

    async def of(self, queue: QueueRef, version: int) -> Sequence[Subscription]:
        """The subscriptions of a queue, at most a second old.

        They are not older than `version` of the queue's record (`record_of`) either. Each
        subscription that is made or ends changes that version, so a message reaches all
        subscriptions that were there when it was posted, whichever process made them.
        """
        known = self._cache.get(queue)
        is_fresh = known is not None and time.monotonic() - known.at < _FRESH
        if known is not None and is_fresh and known.version >= version:
            return known.subscriptions
        changes, at = self._changes, time.monotonic()
        subscriptions = await list_subscriptions(self._management, queue)
        if changes == self._changes:  # else they may be from before the change
            self._cache[queue] = _Known(at, version, subscriptions)
        return subscriptions

    async def one(self, queue: QueueRef, identifier: str) -> Subscription | None:
        """One subscription of a queue as it is now; None when there is none (any more)."""
        return await self._kind.find(queue.project, f"{queue.name}/{identifier}")
