"""Strict order (`options.ordered`): the next message only after the one before it has ended.

An ordered subscription has a queue of its own (`ordered_queue`), to which each post adds a message
in the post's own step; so the order is that queue's. One process at a time works on it: it holds a
record that says until when, and tries the first message until that is delivered or can't be. Then
it goes on, or writes down when the first is due again, and leaves.

A process that finds an outbox message of an ordered subscription works on its queue. If it comes
too early, or while another process works, it posts a wake-up for later: a message of its own in the
retry queue, so a process that is killed leaves the work to others.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import RecordChanged, Unavailable
from zaqar_lite.domain.models import ListQuery, Message, QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.delivery.outbox import (
    Delivery,
    OutboxMessage,
    decode_outbox_message,
    ordered_queue,
)
from zaqar_lite.service.records import Held, Holder, Kind, Lease
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

KIND = "ordered"
_HELD_MS = 60_000
_WORK_MS = 20_000
"""No attempt begins after this time. The hold lasts as long as the last attempt, and more:
an attempt takes less than 30 s."""
_RACE_MS = 1_000
_KEPT_MS = 172_800_000
_PAGE = 20

Deliver = Callable[[Delivery, Subscription], Awaitable[tuple[Delivery, float] | None]]
"""Attempt a delivery; answer it with the seconds to its next try, None when it has ended."""
Look = Callable[[OutboxMessage, QueueRef], Awaitable[OutboxMessage | None]]
"""Read a delayed message before it is due; None when it is not to be delivered now."""


class _State(Lease, omit_defaults=True):
    """The attempts of a queue's first message and its next try (ms), leased by who works on it."""

    held_until: int = msgspec.field(default=0, name="until")
    """By the name that earlier versions know, of which a server may still run."""
    id: str = ""
    attempts: int = 0
    next_at: int = 0


@dataclass(eq=False, repr=False)
class StrictOrder:
    """Deliver what is in the queues of ordered subscriptions."""

    messages: MessageStore
    management: ManagementStore
    subscriptions: Subscriptions
    clock: Clock
    deliver: Deliver
    look: Look

    def __post_init__(self) -> None:
        self._kind = Kind(
            self.management, KIND, "The ordered queue", _State, lives=lambda _: _KEPT_MS
        )
        self._holder = Holder(self.clock)
        self._at_work: dict[tuple[QueueRef, str], bool] = {}

    async def work(self, queue: QueueRef, subscription_id: str) -> int | None:
        """Deliver what is due; answer the instant (ms) of the next wake-up, None without one."""
        key = queue, subscription_id
        if key in self._at_work:
            self._at_work[key] = True  # who works on it here looks once more
            return None
        self._at_work[key] = True
        try:
            again: int | None = None
            while self._at_work[key]:
                self._at_work[key] = False
                again = await self._work(queue, subscription_id)
            return again
        finally:
            del self._at_work[key]

    async def _work(self, queue: QueueRef, subscription_id: str) -> int | None:
        name = f"{queue.name}/{subscription_id}"
        state, version = await self._kind.read(queue.project, name)
        held = Held(self._kind, queue.project, name, state or _State(), version)
        now = self.clock.now_ms()
        wait = max(self._holder.wait_for(held.value), held.value.next_at - now)
        if wait > 0:
            return now + wait
        try:
            await self._holder.hold(held, _HELD_MS)
            return await self._go_on(queue, subscription_id, held, now + _WORK_MS)
        except RecordChanged:
            return now + _RACE_MS
        except Unavailable:
            with suppress(RecordChanged, Unavailable):  # the next one need not wait for its end
                await self._holder.hold(held, 0)
            raise

    async def _go_on(
        self, queue: QueueRef, subscription_id: str, held: Held[_State], until: int
    ) -> int | None:
        """Try message after message; the subscription may change or end between two of them."""
        ordered = ordered_queue(queue.project, subscription_id)
        while messages := await self._first(ordered, _PAGE):
            for message in messages:
                subscription = await self.subscriptions.subscriber_cache.one(queue, subscription_id)
                if subscription is None:
                    await self.messages.purge(ordered, forget=True)
                    await self.subscriptions.flags.note(queue, subscription_id, ordered=False)
                    await held.delete()
                    return None
                now = self.clock.now_ms()
                if now >= until:
                    await self._holder.hold(held, 0)
                    return now
                wait = await self._try(message, subscription, held.value, ordered)
                if wait is not None:
                    held.value.next_at = self.clock.now_ms() + round(wait * 1000)
                    await self._holder.hold(held, 0)
                    return held.value.next_at
                await self.messages.delete(ordered, (message.id,), claim_ids=None)
        await held.delete()
        # What came since was for a process that found the queue held.
        return self.clock.now_ms() if await self._first(ordered, 1) else None

    async def _first(self, ordered: QueueRef, count: int) -> Sequence[Message]:
        return (await self.messages.list_messages(ordered, ListQuery(count))).messages

    async def _try(
        self, message: Message, subscription: Subscription, state: _State, ordered: QueueRef
    ) -> float | None:
        """Try the first message; answer the seconds to its next try, None without one."""
        posted = decode_outbox_message(message.body)
        if state.id != posted.id:
            state.id, state.attempts, state.next_at = posted.id, 0, 0
        entry = await self.look(posted, ordered) if posted.due_at else posted
        if entry is None:
            return None
        delivery = entry.to(subscription.id)
        delivery.attempts = state.attempts
        again = await self.deliver(delivery, subscription)
        state.attempts = delivery.attempts
        return None if again is None else again[1]
