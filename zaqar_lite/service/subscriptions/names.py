"""The names of subscribers: records that keep one from being in a queue's list twice.

A name is a digest of the subscriber, and holds the id of its subscription.
"""

import hashlib
import json
from typing import NamedTuple

from zaqar_lite.domain.errors import RecordChanged
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.storage.management import ManagementStore

_KIND = "subscriber"


class Name(NamedTuple):
    """The subscription that a name stands for, and the version of its record."""

    id: str
    version: int


class SubscriberNames:
    """Take names and release them."""

    def __init__(self, management: ManagementStore) -> None:
        self._management = management

    async def find(self, queue: QueueRef, subscriber: str) -> Name | None:
        """What a subscriber's name stands for."""
        record = await self._management.get_record(_KIND, queue.project, _name(queue, subscriber))
        return None if record is None else Name(json.loads(record.value)["id"], record.version)

    async def take(self, made: Subscription, *, expected: int | None) -> None:
        """Let the name of its subscriber stand for a subscription, as long as that lives.

        Raises:
            RecordChanged: the record is not at the version `expected` (0: there is none).
        """
        await self._management.put_record(
            _KIND,
            made.queue.project,
            _name(made.queue, made.subscriber),
            json.dumps({"id": made.id}).encode(),
            expected=expected,
            ttl_ms=made.ttl * 1000,
        )

    async def release(self, old: Subscription) -> None:
        """Release a name, unless it stands for another subscription by now."""
        found = await self.find(old.queue, old.subscriber)
        if found is None or found.id != old.id:
            return
        name = _name(old.queue, old.subscriber)
        try:
            await self._management.delete_record(
                _KIND, old.queue.project, name, expected=found.version
            )
        except RecordChanged:
            return


def _name(queue: QueueRef, subscriber: str) -> str:
    return f"{queue.name}/{hashlib.sha256(subscriber.encode()).hexdigest()}"
