"""The workers that deliver messages to subscribers, and what becomes of what can't be delivered.

Workers of two kinds claim from internal queues. New outbox messages go to endpoints that answer, or
that nobody has called yet. What fails, and what is for an endpoint that is failing, goes to a retry
queue as a delivery of its own, so a dead endpoint never delays others. What a killed server has
claimed comes again when its lease ends.

In strict order (`options.ordered`) the next message is sent only after the one before it has ended.
An ordered subscription has a queue of its own (`ordered_queue`), to which each post adds a message
in the post's own step; so the order is that queue's. One process at a time works on it: it holds a
record that says until when, and tries the first message until that is delivered or can't be. Then
it goes on, or writes down when the first is due again, and leaves. A process that finds an outbox
message of an ordered subscription works on its queue. If it comes too early, or while another
process works, it posts a wake-up for later: a message of its own in the retry queue, so a process
that is killed leaves the work to others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import uniform

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, RecordChanged, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import ListQuery, Message, QueueRecord, QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.domain.retry_policy import ATTRIBUTE as RETRY_POLICY
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import name_of, queue_in
from zaqar_lite.service.background import Background, LoggedErrors
from zaqar_lite.service.delivery.attempt import DeliveryOutcome, DeliverySender, Result
from zaqar_lite.service.delivery.inspection import AttemptLog
from zaqar_lite.service.delivery.outbox import (
    LEAD_MS,
    LEASE_MS,
    LEAST_LIFE_MS,
    OUTBOX_QUEUES,
    RETRY_QUEUES,
    Delivery,
    OutboxMessage,
    QueueWorker,
    decode_delivery,
    decode_outbox_message,
    deliver_later,
    encode,
    failed_queue,
    ordered_queue,
    outbox_queue,
    payload_of,
    put,
    retry_queue,
)
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.records import PREFIX, Held, Holder, Kind, Lease
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache, record_of
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
FAILED_MS = 604_800_000
"""How long what could not be delivered is kept to be listed and retried: 7 days."""
_WAKE_UP = "~turn"
"""The kind of a wake-up, by the name that earlier versions gave it."""
_AGAIN_MS = 10_000
"""How long after a failure an ordered queue is worked on again, at most."""
_SKEW_MS = 10_000
"""How far the clocks of servers may be apart."""

KIND = "ordered"
"""The kind of the records of ordered queues that somebody works on."""
_HELD_MS = 60_000
_WORK_MS = 20_000
"""No attempt begins after this time. The hold lasts as long as the last attempt, and more:
an attempt takes less than 30 s."""
_RACE_MS = 1_000
_KEPT_MS = 172_800_000
_PAGE = 20

Deliver = Callable[[Delivery, Subscription], Awaitable[tuple[Delivery, float] | None]]
"""Attempt a delivery; answer it with the seconds to its next try, None when it has ended."""
Look = Callable[[OutboxMessage, Message, QueueRef], Awaitable[OutboxMessage | None]]
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
    subscribers: SubscriberCache
    clock: Clock
    deliver: Deliver
    look: Look

    def __post_init__(self) -> None:
        self._kind = Kind(
            self.management,
            KIND,
            "The ordered queue",
            _State,
            lives=lambda _: _KEPT_MS,
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
                subscription = await self.subscribers.one(queue, subscription_id)
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
            if subscription and not subscription.is_ordered:  # who made it so could not note it
                await self.subscriptions.match_flags(queue, subscription_id)
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
        if subscription.disabled is not None and posted.posted_at > subscription.disabled.at:
            return None
        if state.id != posted.id:
            state.id, state.attempts, state.next_at = posted.id, 0, 0
        entry = await self.look(posted, message, ordered) if posted.due_at else posted
        if entry is None:
            return None
        delivery = entry.to(subscription.id)
        delivery.attempts = state.attempts
        again = await self.deliver(delivery, subscription)
        state.attempts = delivery.attempts
        return None if again is None else again[1]


@dataclass(eq=False, repr=False)
class Deliveries:
    """Deliver what is in the outbox until it is stopped."""

    messages: MessageStore
    management: ManagementStore
    queues: Queues
    subscriptions: Subscriptions
    subscribers: SubscriberCache
    long_polling: LongPolling
    sender: DeliverySender
    log: AttemptLog
    clock: Clock
    confirmed_only: bool
    disable_after: int
    """Seconds with nothing but failures after which a subscription is disabled."""

    def __post_init__(self) -> None:
        self.on_outcome: Callable[[str], None] = lambda _: None
        """Called with the outcome of each attempt."""
        self.on_disabled: Callable[[], None] = lambda: None
        """Called when a subscription was disabled."""
        self._strict_order = StrictOrder(
            self.messages,
            self.management,
            self.subscriptions,
            self.subscribers,
            self.clock,
            deliver=self._retry,
            look=self._look_at_due,
        )
        self._writing = Background("the log of deliveries", self.log.flush, rest=1.0)
        acts = [(queue, self._deliver_new) for queue in OUTBOX_QUEUES]
        acts += [(queue, self._deliver_again) for queue in RETRY_QUEUES]
        self._workers = [
            QueueWorker(queue, act, messages=self.messages, long_polling=self.long_polling)
            for queue, act in acts
        ]

    def start(self) -> None:
        """Begin to deliver in tasks of the running event loop."""
        for worker in self._workers:
            worker.start()
        self._writing.start()

    async def stop(self) -> None:
        """End the tasks; what is under way comes again when its lease ends."""
        await self._writing.stop()
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        await self.sender.close()
        with LoggedErrors("the last attempts to deliver, for their logs"):
            await self.log.flush()

    async def _deliver_new(self, message: Message) -> None:
        """Send a message to all who subscribed before it was posted.

        Work on an ordered queue may last for half a lease, so the others do not wait for it.
        """
        entry = decode_outbox_message(message.body)
        queue = QueueRef(entry.project, entry.queue)
        outcomes = await asyncio.gather(
            *(self._begin_ordered(queue, one) for one in entry.ordered),
            self._deliver_to_others(entry, message, queue),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _begin_ordered(self, queue: QueueRef, subscription_id: str) -> None:
        """Work on an ordered queue. What fails is repeated later, and not with the outbox message.

        If the outbox message came again, all other subscribers would get it again.
        """
        with LoggedErrors("an ordered delivery, which is taken up again"):
            await self._work_on_ordered(queue, subscription_id)
            return
        # One wake-up for all messages of this time.
        at = (self.clock.now_ms() // _AGAIN_MS + 1) * _AGAIN_MS
        await self._post_wake_up(queue, subscription_id, at)

    async def _deliver_to_others(
        self, entry: OutboxMessage, message: Message, queue: QueueRef
    ) -> None:
        """Send a message to all but the ordered subscriptions.

        Subscribers of a topic that are queues get it now, and delay it themselves; others get it
        when it is due.
        """
        if entry.until <= self.clock.now_ms():
            return
        due = await self._look_at_due(entry, message) if entry.due_at else entry
        if due is None:
            return
        record = await record_of(self.management, queue)
        version = entry.version if record is None else max(entry.version, record.version)
        all_of_queue = await self.subscribers.of(queue, version)
        if not all_of_queue:
            await self.subscriptions.flags.clear(queue)
            return
        policy = record.metadata.get(RETRY_POLICY) if isinstance(record, QueueRecord) else None
        payload = forwarded = msgspec.Raw(payload_of(due))
        wait = 0.0
        if (sent := entry.sent) is not None:  # a topic's
            entry.id = message.id
            wait = (sent.delay or 0) - (self.clock.now_ms() - entry.posted_at) / 1000
            sent = msgspec.structs.replace(sent, body=entry.body, posted_at=entry.posted_at)
            forwarded = msgspec.Raw(encode(sent))
        first: list[Awaitable[tuple[Delivery, float] | None]] = []
        later: list[tuple[Delivery, float]] = []
        for one in all_of_queue:
            if one.created_at > entry.posted_at + _SKEW_MS or one.id in entry.ordered:
                continue
            is_queue = queue_in(one.subscriber) is not None
            delivery = due.to(one.id, forwarded if is_queue else payload)
            if is_queue or wait <= 0:
                first.append(self._deliver_fresh(delivery, one, policy))
            else:
                later.append((delivery, wait))
        again = await asyncio.gather(*first)
        tried_later = [*later, *(one for one in again if one is not None)]
        await deliver_later(self.messages, tried_later, self.clock.now_ms())

    async def _deliver_again(self, message: Message) -> None:
        """Try one delivery once more."""
        delivery = decode_delivery(message.body)
        queue = QueueRef(delivery.project, delivery.queue)
        if delivery.kind == _WAKE_UP:
            await self._work_on_ordered(queue, delivery.subscription, delivery.until)
            return
        found = await self.subscribers.one(queue, delivery.subscription)
        if found is None:
            return  # it ended: nothing more is sent
        if delivery.kind != "Notification" and delivery.id != found.confirmation_id:
            return  # another request to confirm has followed it
        again = await self._retry(delivery, found)
        if again is not None:
            await deliver_later(self.messages, [again], self.clock.now_ms())

    async def _retry(
        self, delivery: Delivery, subscription: Subscription
    ) -> tuple[Delivery, float] | None:
        """Attempt a delivery that is not fresh, unless its message is about to expire.

        Answers it with the seconds to its next try, None without one.
        """
        if delivery.until <= self.clock.now_ms() + LEAST_LIFE_MS:
            await self.bury(delivery, subscription, "the message's ttl ended")
            return None
        record = await self.management.get_queue(subscription.queue)
        policy = None if record is None else record.metadata.get(RETRY_POLICY)
        return await self._deliver(delivery, subscription, policy, is_fresh=False)

    async def _work_on_ordered(self, queue: QueueRef, subscription_id: str, woken: int = 0) -> None:
        """Work on the queue of an ordered subscription, and post the next wake-up.

        `woken` is the instant of this wake-up. The next is later even if this one came too early by
        this process's clock: its key is made of its instant, and that of this one is used.
        """
        at = await self._strict_order.work(queue, subscription_id)
        if at is not None:
            await self._post_wake_up(queue, subscription_id, max(at, woken + 1))

    async def _post_wake_up(self, queue: QueueRef, subscription_id: str, at: int) -> None:
        """Post the wake-up of an instant (ms); more than one call makes one of it."""
        delivery = Delivery(
            queue.project, queue.name, subscription_id, "", at, msgspec.Raw(b"null"), kind=_WAKE_UP
        )
        wait = max(at - self.clock.now_ms(), 0)
        key = IdempotencyKey(f"{subscription_id}.{at}", bytes(16))
        wake_up = NewMessage(encode(delivery), wait + FAILED_MS, wait, key)
        await put(self.messages, retry_queue(queue.project), wake_up)

    async def _look_at_due(
        self, entry: OutboxMessage, seen: Message, worker: QueueRef | None = None
    ) -> OutboxMessage | None:
        """Read a delayed message just before it is due: it may be deleted or edited by now.

        None when it is not to be delivered now. If the message was due before this look, by this
        clock or by the store's when the outbox message was `seen`, it is delivered as it was
        posted: a consumer may have taken and deleted it already.
        """
        queue = QueueRef(entry.project, entry.queue)
        found = await self.messages.get_messages(queue, (entry.id,))
        if not found:
            record = await self.management.get_queue(queue)
            delays = record is None or record.is_delayed
            is_late = seen.now >= (seen.delay_expires_at or seen.now) + LEAD_MS
            return entry if is_late or not delays or self.clock.now_ms() >= entry.due_at else None
        # Its instants are the store's, and this process's clock may differ: compare durations.
        message = found[0]
        due_at = message.delay_expires_at or 0
        left, waits = due_at - message.now, due_at - message.created_at
        entry.body, entry.ttl = msgspec.Raw(message.body), message.ttl_ms // 1000
        entry.until = message.expires_at
        if left > 0 and waits > entry.due_at - entry.posted_at:  # it was edited to be due later
            entry.due_at = entry.posted_at + waits
            lives = message.expires_at - message.now
            again = NewMessage(encode(entry), lives, max(left - LEAD_MS, 0))
            await put(self.messages, worker or outbox_queue(entry.project), again)
            return None
        await asyncio.sleep(max(left, 0) / 1000)
        return entry

    async def _deliver_fresh(
        self, delivery: Delivery, subscription: Subscription, policy: object
    ) -> tuple[Delivery, float] | None:
        """Attempt one of a message's deliveries; when it fails, the others are not repeated."""
        with LoggedErrors("a delivery, which is tried again"):
            return await self._deliver(delivery, subscription, policy, is_fresh=True)
        return delivery, LEASE_MS / 1000

    async def _deliver(
        self, delivery: Delivery, subscription: Subscription, policy: object, *, is_fresh: bool
    ) -> tuple[Delivery, float] | None:
        """Attempt a delivery; answer it with the seconds to its next try, None without one."""
        waits = self.confirmed_only and not subscription.confirmed
        is_message = delivery.kind == "Notification"
        if subscription.expires_at <= self.clock.now_ms() or (waits and is_message):
            return None
        if subscription.disabled is not None:
            if not is_fresh:  # it was posted before that
                await self.bury(delivery, subscription, "the subscription is disabled")
            return None
        result = await self.sender.attempt(delivery, subscription, policy, is_fresh=is_fresh)
        if result.outcome is DeliveryOutcome.DEFERRED:
            return delivery, result.wait * uniform(1.0, 1.3)  # noqa: S311 - jitter
        delivery.attempts += 1
        now = self.clock.now_ms()
        is_late = (
            result.outcome is DeliveryOutcome.AGAIN and now + result.wait * 1000 >= delivery.until
        )
        self._note_attempt(delivery, subscription, result)
        match result.outcome:
            case DeliveryOutcome.DONE:
                return None
            case DeliveryOutcome.AGAIN if not is_late:
                await self._check_failing(subscription)
                return delivery, result.wait
        reason = result.answer.error or f"the receiver answered {result.answer.status}"
        if is_late:
            reason += "; the message's ttl would end before the next try"
        await self.bury(delivery, subscription, reason)
        if result.outcome is DeliveryOutcome.GONE:  # last: nothing is kept from then on
            await self._disable(subscription, "the receiver answered 410")
        else:
            await self._check_failing(subscription)
        return None

    async def bury(self, delivery: Delivery, subscription: Subscription, reason: str) -> None:
        """Keep what can't be delivered in the subscription's dead-letter queue, or to be listed."""
        if delivery.kind != "Notification":
            return
        target = subscription.options.get("dead_letter_queue")
        if isinstance(target, str):
            letter = {
                "subscription_id": subscription.id,
                "subscriber": subscription.subscriber,
                "message_id": delivery.id,
                "reason": reason,
                "attempts": delivery.attempts,
                "message": msgspec.Raw(await self.sender.payload(delivery)),
            }
            queue = QueueRef(delivery.project, target)
            try:
                await self._tell(queue, encode(letter), PREFIX in bytes(delivery.payload))
            except ZaqarLiteError as exc:  # it is full, for example, or no pool can take it
                if isinstance(exc, Unavailable) and not isinstance(exc, LimitReached):
                    raise
                reason = f"{reason}; the queue {target!r} did not take it: {exc}"
            else:
                return
        delivery.reason = reason
        failed = failed_queue(delivery.project, subscription.id)
        await put(self.messages, failed, NewMessage(encode(delivery), FAILED_MS))

    async def _check_failing(self, subscription: Subscription) -> None:
        """Disable a subscription that has only failed for too long."""
        since = await self.log.failing_since(subscription)
        if since is not None and self.clock.now_ms() - since >= self.disable_after * 1000:
            days = self.disable_after / 86_400
            await self._disable(subscription, f"nothing but failures for {days:g} days")

    async def _disable(self, subscription: Subscription, reason: str) -> None:
        """Stop delivering to a subscription, and say so: in the log, and where it asked for it."""
        if not await self.subscriptions.disable(subscription, reason):
            return
        self.on_disabled()
        await self.log.forget(subscription)
        logger.warning(
            "subscription %s of queue %r is disabled: %s",
            subscription.id,
            subscription.queue.name,
            reason,
        )
        target = subscription.options.get("events_queue")
        if isinstance(target, str):
            event = {
                "event": "subscription.disabled",
                "subscription_id": subscription.id,
                "queue_name": name_of(subscription.queue),
                "reason": reason,
            }
            with LoggedErrors(f"telling the queue {target!r} of that"):
                await self._tell(QueueRef(subscription.queue.project, target), encode(event))

    async def _tell(self, queue: QueueRef, body: bytes, is_secret: bool = False) -> None:
        """Post to a user's queue, which is made unless it is there; nobody is notified of that."""
        is_secret |= (await self.queues.ensure(queue)).encrypted
        body = await self.sender.sealed(queue, body, is_secret=is_secret)
        await put(self.messages, queue, NewMessage(body, FAILED_MS))

    def _note_attempt(self, delivery: Delivery, subscription: Subscription, result: Result) -> None:
        answer = result.answer
        attempt = {
            "id": delivery.id,
            "at": result.at,
            "attempt": delivery.attempts,
            "outcome": result.outcome.value,
            "status": answer.status,
            "milliseconds": result.milliseconds,
            "answer": answer.text,
            "error": answer.error,
            "next_at": result.at + round(result.wait * 1000)
            if result.outcome is DeliveryOutcome.AGAIN
            else None,
        }
        self.on_outcome(result.outcome.value)
        self.log.add(subscription, attempt, succeeded=result.outcome is DeliveryOutcome.DONE)
