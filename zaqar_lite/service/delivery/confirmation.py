"""Ask a new subscriber whether it wants a queue's messages (zaqar-behaviour 5.4)."""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import name_of, path_of
from zaqar_lite.service.delivery.outbox import LEASE_MS, Delivery, encode, put, retry_queue
from zaqar_lite.service.presigned_urls import PresignedUrls
from zaqar_lite.storage.base import MessageStore


@dataclass(eq=False, repr=False)
class Confirmation:
    """Send requests to confirm, by the way that deliveries take."""

    messages: MessageStore
    presigned_urls: PresignedUrls
    clock: Clock
    public_url: str | None

    async def ask(self, subscription: Subscription) -> None:
        """Send what a subscriber needs to confirm."""
        queue = name_of(subscription.queue)
        await self._send(
            subscription,
            "SubscriptionConfirmation",
            f"You have chosen to subscribe to the queue: {queue}. This message was sent to ask "
            "whether you want its messages: send SubscribeBody to URL-Paths by PUT, with the "
            "headers of this document.",
        )

    async def tell_unsubscribed(self, subscription: Subscription) -> None:
        """Send word that it was refused, and what confirms it again."""
        queue = name_of(subscription.queue)
        await self._send(
            subscription,
            "UnsubscribeConfirmation",
            f"You have unsubscribed from the queue: {queue}. To subscribe again, send "
            "SubscribeBody to URL-Paths by PUT, with the headers of this document.",
        )

    async def _send(self, subscription: Subscription, kind: str, text: str) -> None:
        queue = subscription.queue
        path = f"{path_of(queue)}/subscriptions/{subscription.id}/confirm"
        until = subscription.expires_at or self.clock.now_ms() + subscription.ttl * 1000
        signed = await self.presigned_urls.sign_path(
            queue, path, "PUT", datetime.fromtimestamp(until // 1000, UTC)
        )
        document = {
            "Message_Type": kind,
            "Message": text,
            "URL-Signature": signed.signature,
            "URL-Methods": "PUT",
            "URL-Paths": path,
            "X-Project-ID": queue.project,
            "URL-Expires": signed.expires,
            "SubscribeBody": {"confirmed": True, "token": subscription.token},
            "UnsubscribeBody": {"confirmed": False, "token": subscription.token},
            "queue_name": name_of(queue),
        }
        if self.public_url is not None:
            document["WSGISubscribeURL"] = f"{self.public_url.rstrip('/')}{path}"
        delivery = Delivery(
            queue.project,
            queue.name,
            subscription.id,
            f"{subscription.id}{subscription.token[:8]}",
            until,
            msgspec.Raw(encode(document)),
            kind=kind,
        )
        ttl_ms = until - self.clock.now_ms() + LEASE_MS
        await put(self.messages, retry_queue(queue.project), NewMessage(encode(delivery), ttl_ms))
