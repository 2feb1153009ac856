"""Flags of a queue's own record: that it has subscriptions, and which of them are ordered.

So a post learns, without one more call, whether it writes notes, and to which lines.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zaqar_lite.domain.errors import Invalid, QueueChanged
from zaqar_lite.domain.metadata import MAX_ORDERED, ORDERED, SUBSCRIBED
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import KIND as TOPIC
from zaqar_lite.domain.topics import is_topic, name_of
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.records import retried
from zaqar_lite.service.subscriptions.subscriber_cache import subscription_ids
from zaqar_lite.storage.management import ManagementStore


class QueueFlags:
    """Set and clear the flags of queues.

    A topic has none, as its posts always leave an outbox message; its record is written anew, so
    that its version tells how old a list of its subscriptions is.
    """

    def __init__(self, management: ManagementStore, queues: Queues, policies: Policies) -> None:
        self._management = management
        self._queues = queues
        self._policies = policies

    async def check_lines(
        self, queue: QueueRef, subscription_id: str, options: Mapping[str, Any] | None
    ) -> None:
        """Refuse options that ask for order where the queue has as many such lines as it may.

        Raises:
            Invalid: it has, not counting this one.
        """
        if not (options or {}).get("ordered"):
            return
        # Not from the cached policy: nothing tells it that another process has ended a line.
        record = await self._management.get_queue(queue)
        if record is not None:
            _check_room(_other_lines(record, subscription_id))

    async def are_set(self, made: Subscription) -> bool:
        """Tell whether the queue's flags name a subscription, as far as they name any."""
        record = await self._management.get_queue(made.queue)
        if record is None or SUBSCRIBED not in record.metadata:
            return False
        return not made.is_ordered or made.id in record.metadata.get(ORDERED, ())

    async def add(self, made: Subscription) -> None:
        """Count a subscription in the flag of the queue's record; make the record if need be.

        Raises:
            Invalid: it is ordered, and the queue has as many such lines as it may.
        """
        if is_topic(made.queue):
            await self._renew(made.queue)
        else:
            await self._change(made.queue, made.id, ordered=made.is_ordered, count=1)

    async def order(self, queue: QueueRef, subscription_id: str, *, ordered: bool) -> None:
        """Let posts bring their messages to a subscription's own queue, or not any more.

        Raises:
            Invalid: the queue has as many such lines as it may.
        """
        if not is_topic(queue) and await self._management.get_queue(queue) is not None:
            await self._change(queue, subscription_id, ordered=ordered, count=0)

    async def end(self, queue: QueueRef, ended: str) -> None:
        """Let all processes learn at their next delivery that a subscription has ended."""
        if is_topic(queue):
            await self._renew(queue)
        elif await self._management.get_queue(queue) is not None:
            await self._change(queue, ended, ordered=False, count=1)

    async def clear(self, queue: QueueRef) -> None:
        """Let posts pass over a queue that has no subscription any more.

        A subscription that is made meanwhile counts the flag up, and this does nothing.
        """
        record = await self._management.get_queue(queue)
        if record is None or SUBSCRIBED not in record.metadata:
            return
        if await subscription_ids(self._management, queue, most=1):
            return
        metadata = {
            name: value
            for name, value in record.metadata.items()
            if name not in (SUBSCRIBED, ORDERED)
        }
        try:
            await self._management.update_queue(replace(record, metadata=metadata))
        except QueueChanged:
            return
        self._policies.forget(queue)

    @retried("The topic")
    async def _renew(self, topic: QueueRef) -> None:
        """Write a topic's record anew; one that is made later is newer than all before."""
        record = await self._management.get_record(TOPIC, topic.project, name_of(topic))
        if record is None:
            return
        await self._management.put_record(
            TOPIC, topic.project, record.name, record.value, expected=record.version
        )

    @retried("The queue {1.name!r}")
    async def _change(
        self, queue: QueueRef, subscription_id: str, *, ordered: bool, count: int
    ) -> None:
        record = await self._management.get_queue(queue)
        if record is None:
            await self._queues.ensure(queue)
            raise QueueChanged("It was made just now.")
        metadata = dict(record.metadata)
        metadata[SUBSCRIBED] = record.metadata.get(SUBSCRIBED, 0) + count
        metadata.pop(ORDERED, None)
        lines = _other_lines(record, subscription_id)
        if ordered:
            _check_room(lines)
            lines.add(subscription_id)
        if lines:
            metadata[ORDERED] = sorted(lines)
        if metadata == record.metadata:
            return
        await self._management.update_queue(
            QueueRecord(queue, metadata, record.version, record.exposing)
        )
        self._policies.forget(queue)


def _other_lines(record: QueueRecord, subscription_id: str) -> set[str]:
    """The ordered subscriptions that a queue has besides one."""
    return {*record.metadata.get(ORDERED, ())} - {subscription_id}


def _check_room(lines: set[str]) -> None:
    """Refuse one more ordered subscription than a queue may have."""
    if len(lines) >= MAX_ORDERED:
        raise Invalid(f"A queue may have {MAX_ORDERED} ordered subscriptions.")
