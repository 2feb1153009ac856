"""What becomes of deliveries that nothing mends, and of subscriptions that only fail."""

import logging
from collections.abc import Callable

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import name_of
from zaqar_lite.service.delivery.log import DeliveryLog
from zaqar_lite.service.delivery.notes import Delivery, encode, failed_queue, put
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore

logger = logging.getLogger(__name__)
FAILED_MS = 604_800_000
"""How long what could not be delivered is kept to be listed and retried: 7 days."""


class Undeliverable:
    """Keep what can't be delivered, and disable subscriptions that have failed for too long."""

    def __init__(
        self,
        messages: MessageStore,
        queues: Queues,
        subscriptions: Subscriptions,
        log: DeliveryLog,
        clock: Clock,
        *,
        disable_after: int,
    ) -> None:
        self._messages = messages
        self._queues = queues
        self._subscriptions = subscriptions
        self._log = log
        self._clock = clock
        self._disable_after_ms = disable_after * 1000
        self.on_disabled: Callable[[], None] = lambda: None
        """Called when a subscription was disabled."""

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
                "message": delivery.payload,
            }
            try:
                await self._tell(QueueRef(delivery.project, target), letter)
            except ZaqarLiteError as exc:  # it is full, for example, or no pool can take it
                if isinstance(exc, Unavailable) and not isinstance(exc, LimitReached):
                    raise
                reason = f"{reason}; the queue {target!r} did not take it: {exc}"
            else:
                return
        delivery.reason = reason
        failed = failed_queue(delivery.project, subscription.id)
        await put(self._messages, failed, NewMessage(encode(delivery), FAILED_MS))

    async def check_failing(self, subscription: Subscription) -> None:
        """Disable a subscription that has only failed for too long."""
        since = await self._log.failing_since(subscription)
        if since is not None and self._clock.now_ms() - since >= self._disable_after_ms:
            days = self._disable_after_ms / 86_400_000
            await self.disable(subscription, f"nothing but failures for {days:g} days")

    async def disable(self, subscription: Subscription, reason: str) -> None:
        """Stop delivering to a subscription, and say so: in the log, and where it asked for it."""
        if not await self._subscriptions.disable(subscription, reason):
            return
        self.on_disabled()
        await self._log.forget(subscription)
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
            try:
                await self._tell(QueueRef(subscription.queue.project, target), event)
            except ZaqarLiteError as exc:
                logger.warning("the queue %r was not told of that: %s", target, exc)

    async def _tell(self, queue: QueueRef, document: object) -> None:
        """Post to a user's queue, which is made unless it is there; nobody is notified of that."""
        await self._queues.ensure(queue)
        await put(self._messages, queue, NewMessage(encode(document), FAILED_MS))
