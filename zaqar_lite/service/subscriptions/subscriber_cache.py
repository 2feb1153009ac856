"""The subscriptions of a queue as its deliveries need them: read together, for a second at most."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.domain.subscriptions import KIND, Subscription
from zaqar_lite.domain.topics import KIND as TOPIC
from zaqar_lite.domain.topics import is_topic, name_of
from zaqar_lite.service.records import Decoding, full_page
from zaqar_lite.storage.management import ManagementStore

_MAX_CACHED = 1_000
_PAGE = 200
_FRESH = 1.0
"""Seconds after which another process's change is seen at the latest; its own is seen at once."""


async def list_subscriptions(
    management: ManagementStore, queue: QueueRef, *, after: str = "", limit: int | None = None
) -> Sequence[Subscription]:
    """List the live subscriptions of a queue after an id, all of them or up to `limit`.

    One whose record was damaged is left out.
    """
    decoding = Decoding()

    async def show(records: Sequence[Record]) -> Sequence[Subscription]:
        return await decoding.all(await management.opened(records), Subscription.decode)

    prefix = f"{queue.name}/"
    return await full_page(
        management, KIND, queue.project, show, after=prefix + after, limit=limit, prefix=prefix
    )


async def subscription_ids(
    management: ManagementStore, queue: QueueRef, *, most: int | None = None
) -> Sequence[str]:
    """Name the live subscriptions of a queue, up to `most`, without reading what is in them."""
    found: list[str] = []
    while most is None or len(found) < most:
        size = _PAGE if most is None else min(most - len(found), _PAGE)
        page = await _page(management, queue, found[-1] if found else "", size)
        found += map(_id_of, page)
        if len(page) < size:
            break
    return found


async def _page(
    management: ManagementStore, queue: QueueRef, after: str, size: int
) -> Sequence[Record]:
    """The records of a queue after an id, as they are stored; fewer than `size` are the last."""
    prefix = f"{queue.name}/"
    page = await management.list_records(
        KIND, queue.project, after=(queue.project, prefix + after), limit=size
    )
    return [record for record in page if record.name.startswith(prefix)]


def _id_of(record: Record) -> str:
    return record.name.partition("/")[2]


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
        self._cache: OrderedDict[QueueRef, _Known] = OrderedDict()
        self._changes = 0
        self._ended: OrderedDict[str, None] = OrderedDict()

    def forget(self, queue: QueueRef) -> None:
        """Ask again: a subscription of this queue was changed by this process."""
        self._changes += 1
        self._cache.pop(queue, None)

    def end(self, queue: QueueRef, identifier: str) -> None:
        """Send nothing more to a subscription that this process has just ended."""
        self.forget(queue)
        self._ended[identifier] = None
        if len(self._ended) > _MAX_CACHED:
            self._ended.popitem(last=False)

    def has_ended(self, subscription: Subscription) -> bool:
        """Tell whether this process ended a subscription since it was read."""
        return subscription.id in self._ended

    async def of(self, queue: QueueRef, version: int = 0) -> Sequence[Subscription]:
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
        record = await record_of(self._management, queue)
        subscriptions = await list_subscriptions(self._management, queue)
        if changes == self._changes:  # else they may be from before the change
            read_at = version if record is None else record.version
            self._cache[queue] = _Known(at, read_at, subscriptions)
            self._cache.move_to_end(queue)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return subscriptions

    async def one(self, queue: QueueRef, identifier: str) -> Subscription | None:
        """One subscription of a queue, at most a second old; None when there is none (any more).

        It is read alone if the list is not known, because each new subscription drops the list.
        """
        known = self._cache.get(queue)
        if known is not None and time.monotonic() - known.at < _FRESH:
            found = (one for one in known.subscriptions if one.id == identifier)
            return next(found, None)
        name = f"{queue.name}/{identifier}"
        record = await self._management.get_record(KIND, queue.project, name)
        return None if record is None else Subscription.decode(record)
