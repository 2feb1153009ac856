"""What a project may ask of its deliveries: the last attempts, what failed, another try, a ping.

The last attempts of a subscription are kept in one record beside it. They are gathered in memory
and written once a second for each subscription that had any, so a busy one costs one write a
second; a server that is killed loses the last second of its log, and nothing else.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, NotFound
from zaqar_lite.domain.ids import Marker, format_marker, is_message_id, parse_marker
from zaqar_lite.domain.limits import page_limit
from zaqar_lite.domain.models import ListQuery, Message, QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import name_of
from zaqar_lite.service.background import LoggedErrors
from zaqar_lite.service.delivery.attempt import DeliverySender, Result
from zaqar_lite.service.delivery.outbox import (
    Delivery,
    OutboxMessage,
    decode_delivery,
    deliver_later,
    encode,
    failed_queue,
    trace_of,
)
from zaqar_lite.service.records import Kind
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

KIND = "deliveries"
MAX_ATTEMPTS = 20
_LATEST_MS = 86_400_000
"""The record of a log lives so long at least, even if its subscription ends sooner."""

Attempt = dict[str, Any]


class _Log(msgspec.Struct):
    """The last attempts, since when all have failed, and for how long to keep that."""

    attempts: list[dict[str, Any]] = []
    failing_since: int | None = None
    keep_ms: int = _LATEST_MS


@dataclass(eq=False)
class _Pending:
    """What is to be written of one subscription."""

    subscription: Subscription
    attempts: list[Attempt] = field(default_factory=list)
    succeeded_at: int = 0
    failing_since: int | None = None


@dataclass(eq=False, repr=False)
class AttemptLog:
    """Keep the last attempts of each subscription, and since when it has only failed."""

    management: ManagementStore
    clock: Clock

    def __post_init__(self) -> None:
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._writing = asyncio.Lock()
        self._kind = Kind(self.management, KIND, "The log", _Log, lives=lambda log: log.keep_ms)

    def add(self, subscription: Subscription, attempt: Attempt, *, succeeded: bool) -> None:
        """Note an attempt that has just ended."""
        pending = self._pending.setdefault(_key(subscription), _Pending(subscription))
        pending.attempts = [*pending.attempts, attempt][-MAX_ATTEMPTS:]
        now = self.clock.now_ms()
        if succeeded:
            pending.succeeded_at, pending.failing_since = now, None
        elif pending.failing_since is None:
            pending.failing_since = now

    async def read(self, queue: QueueRef, subscription_id: str) -> Sequence[Attempt]:
        """The last attempts of a subscription, the newest first."""
        key = queue.project, f"{queue.name}/{subscription_id}"
        await self._write(key)
        log = await self._kind.find(*key)
        return () if log is None else log.attempts[::-1]

    async def failing_since(self, subscription: Subscription) -> int | None:
        """Since when all attempts have failed; None when one succeeded, or none is written yet."""
        pending = self._pending.get(_key(subscription))
        if pending is not None and pending.succeeded_at:
            return pending.failing_since
        log = await self._kind.find(*_key(subscription))
        return None if log is None else log.failing_since

    async def forget(self, subscription: Subscription) -> None:
        """Remove the log of a subscription that has ended, or begins anew."""
        key = _key(subscription)
        self._pending.pop(key, None)
        async with self._writing:
            await self._kind.delete(*key)

    async def flush(self) -> None:
        """Write what is pending."""
        for key in tuple(self._pending):
            await self._write(key)

    async def _write(self, key: tuple[str, str]) -> None:
        """Write what is pending of a subscription; what ends meanwhile stays pending."""
        async with self._writing:
            pending = self._pending.get(key)
            if pending is None:
                return
            attempts = tuple(pending.attempts)

            def merge(log: _Log | None) -> _Log:
                log = log or _Log()
                merged = sorted((*log.attempts, *attempts), key=lambda one: str(one["at"]))
                since = log.failing_since
                if pending.succeeded_at or since is None:
                    since = pending.failing_since
                left = pending.subscription.expires_at - self.clock.now_ms()
                return _Log(merged[-MAX_ATTEMPTS:], since, max(left, _LATEST_MS))

            if attempts:
                await self._kind.write(*key, merge)
                written = {id(one) for one in attempts}
                pending.attempts = [one for one in pending.attempts if id(one) not in written]
            if not pending.attempts and self._pending.get(key) is pending:
                del self._pending[key]


def _key(subscription: Subscription) -> tuple[str, str]:
    return subscription.queue.project, subscription.name


_RETRIED_MS = 3_600_000
"""How long a delivery that is retried by hand is tried at least, even if its message expired."""

MOST_REPLAYED = 500
"""Messages that one call of `replay` looks at."""
_PAGE, _MOST_BYTES = 50, 4_194_304
"""How many it reads at a time, and the bytes of bodies after which it leaves the rest."""


class Failed(NamedTuple):
    """A delivery that was given up; `failed_at` in milliseconds."""

    id: str
    failed_at: int
    delivery: Delivery


class Replayed(NamedTuple):
    """How many messages are delivered again, and the marker of the rest; None when it was all."""

    messages: int
    marker: str | None


@dataclass(eq=False, repr=False)
class DeliveryInspection:
    """Show and repeat the deliveries of a subscription."""

    messages: MessageStore
    subscriptions: Subscriptions
    sender: DeliverySender
    log: AttemptLog
    clock: Clock

    async def attempts(self, queue: QueueRef, subscription_id: str) -> Sequence[Attempt]:
        """The last attempts to deliver to a subscription, the newest first.

        Raises:
            NotFound: no such subscription.
        """
        await self.subscriptions.get(queue, subscription_id)
        return await self.log.read(queue, subscription_id)

    async def failed(
        self, queue: QueueRef, subscription_id: str, *, marker: str | None, limit: int | None
    ) -> Sequence[Failed]:
        """List what could not be delivered in the last 7 days, the oldest first.

        Raises:
            NotFound: no such subscription.
            Invalid: the limit is out of range.
        """
        limit = page_limit(limit, self.subscriptions.limits.max_messages_per_page)
        await self.subscriptions.get(queue, subscription_id)
        after = parse_marker(marker)
        if marker is not None and after is None:
            return ()
        page = await self.messages.list_messages(
            failed_queue(queue.project, subscription_id), ListQuery(limit, after)
        )
        found = []
        for message in page.messages:
            delivery = decode_delivery(message.body)
            delivery.payload = msgspec.Raw(await self.sender.payload(delivery))
            found.append(Failed(message.id, message.created_at, delivery))
        return found

    async def _check_enabled(self, queue: QueueRef, subscription_id: str) -> None:
        subscription = await self.subscriptions.get(queue, subscription_id)
        if subscription.disabled is not None:
            raise Invalid(
                'The subscription is disabled: PATCH it with {"disabled": false} before messages '
                "are delivered again."
            )

    async def retry(self, queue: QueueRef, subscription_id: str, delivery_id: str) -> None:
        """Deliver again: a failed delivery by its id, or a message that the queue still has.

        Raises:
            NotFound: no such subscription; or neither a delivery nor a message with this id.
            Invalid: the subscription is disabled, or the message is not due yet.
        """
        await self._check_enabled(queue, subscription_id)
        failed = failed_queue(queue.project, subscription_id)
        ids = (delivery_id,) if is_message_id(delivery_id) else ()
        if ids and (found := await self.messages.get_messages(failed, ids)):
            delivery = decode_delivery(found[0].body)
            delivery.until = max(delivery.until, self.clock.now_ms() + _RETRIED_MS)
        elif ids and (found := await self.messages.get_messages(queue, ids)):
            if (found[0].delay_expires_at or 0) > found[0].now:
                raise Invalid("The message is delayed: it is delivered when it is due.")
            delivery = _entry(queue, found[0]).to(subscription_id)
        else:
            raise NotFound(f"There is no delivery and no message {delivery_id!r} (any more).")
        delivery.attempts, delivery.reason = 0, ""
        await deliver_later(self.messages, [(delivery, 0.0)], self.clock.now_ms())
        with LoggedErrors("a delivery that is tried again, and stays listed as failed"):
            await self.messages.delete(failed, ids, claim_ids=None)

    async def replay(
        self,
        queue: QueueRef,
        subscription_id: str,
        *,
        since: int | None,
        until: int | None,
        marker: str | None,
    ) -> Replayed:
        """Deliver again what was posted from `since` on and before `until` (ms), and still lives.

        One call looks at MOST_REPLAYED messages after `marker`; the answer's leads to the rest.
        Messages that are not due yet are left out: they will be delivered anyway.

        Raises:
            NotFound: no such subscription.
            Invalid: the marker can't be read, or the subscription is disabled.
        """
        await self._check_enabled(queue, subscription_id)
        after = parse_marker(marker)
        if marker is not None and after is None:
            raise Invalid("The marker can't be read.")
        looked = size = count = 0
        while True:
            page = await self.messages.list_messages(
                queue, ListQuery(_PAGE, after, include_claimed=True)
            )
            if page.marker is None or not page.messages:  # a page may be short before the end
                return Replayed(count, None)
            looked, after = looked + len(page.messages), Marker(page.marker)
            size += sum(len(message.body) for message in page.messages)
            chosen = [
                (_entry(queue, message).to(subscription_id), 0.0)
                for message in page.messages
                if (since is None or message.created_at >= since)
                and (until is None or message.created_at < until)
            ]
            await deliver_later(self.messages, chosen, self.clock.now_ms())
            count += len(chosen)
            if looked >= MOST_REPLAYED or size >= _MOST_BYTES:
                return Replayed(count, format_marker(page.marker))

    def doubt(self, subscriber: str | None) -> str | None:
        """Return what to warn of where nothing will be delivered to a subscriber."""
        refusal = None if subscriber is None else self.sender.refusal(subscriber)
        if refusal is None:
            return None
        return f"Nothing will be delivered to this subscriber: {refusal} (delivery_allowed)."

    async def ping(self, queue: QueueRef, subscription_id: str) -> Result:
        """Send a test notification at once, and answer what came back.

        Raises:
            NotFound: no such subscription.
        """
        subscription = await self.subscriptions.get(queue, subscription_id)
        payload = encode({"body": None, "queue_name": name_of(queue), "Message_Type": "Ping"})
        delivery = Delivery(
            queue.project,
            queue.name,
            subscription.id,
            token_hex(16),  # a queue takes the next one, too
            self.clock.now_ms(),
            msgspec.Raw(payload),
            kind="Ping",
        )
        return await self.sender.attempt(delivery, subscription, None, is_fresh=False)


def _entry(queue: QueueRef, message: Message) -> OutboxMessage:
    """An outbox message of a message that the queue still has."""
    return OutboxMessage(
        message.id,
        queue.project,
        queue.name,
        message.created_at,
        message.expires_at,
        message.ttl_ms // 1000,
        msgspec.Raw(message.body),
        trace=trace_of(message.headers),
    )
