"""What a project may ask of its deliveries: the last attempts, what failed, another try, a ping."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, NotFound
from zaqar_lite.domain.ids import is_message_id, parse_marker
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import NewMessage, QueueRef, Selection
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.courier import Courier, Fate, Result
from zaqar_lite.service.delivering import LEASE_MS
from zaqar_lite.service.delivery_log import Attempt, DeliveryLog
from zaqar_lite.service.notes import (
    CLIENT_ID,
    Delivery,
    Note,
    decode_delivery,
    encode,
    failed_queue,
    payload_of,
    retries_of,
)
from zaqar_lite.service.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore

_RETRIED_MS = 3_600_000
"""How long a delivery that is retried by hand is tried at least, though its message has ended."""


class Failed(NamedTuple):
    """A delivery that was given up; `failed_at` in milliseconds."""

    id: str
    message_id: str
    reason: str
    attempts: int
    failed_at: int
    payload: bytes


class DeliveryReports:
    """Show and repeat the deliveries of a subscription."""

    def __init__(
        self,
        messages: MessageStore,
        subscriptions: Subscriptions,
        courier: Courier,
        log: DeliveryLog,
        *,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._messages = messages
        self._subscriptions = subscriptions
        self._courier = courier
        self._log = log
        self._limits = limits
        self._clock = clock

    async def attempts(self, queue: QueueRef, subscription_id: str) -> Sequence[Attempt]:
        """The last attempts to deliver to a subscription, the newest first.

        Raises:
            NotFound: no such subscription.
        """
        await self._subscriptions.get(queue, subscription_id)
        return await self._log.read(queue, subscription_id)

    async def failed(
        self, queue: QueueRef, subscription_id: str, *, marker: str | None, limit: int
    ) -> Sequence[Failed]:
        """List what could not be delivered in the last 7 days, the oldest first.

        Raises:
            NotFound: no such subscription.
            Invalid: the limit is out of range.
        """
        most = self._limits.max_messages_per_page
        if not 1 <= limit <= most:
            raise Invalid(f"Limit must be at least 1 and no greater than {most}.")
        await self._subscriptions.get(queue, subscription_id)
        after = None if marker is None else parse_marker(marker)
        if marker is not None and after is None:
            return ()
        page = await self._messages.list_messages(
            failed_queue(queue.project, subscription_id), Selection(limit, after)
        )
        found = []
        for message in page.messages:
            delivery = decode_delivery(message.body)
            found.append(
                Failed(
                    message.id,
                    delivery.id,
                    delivery.reason,
                    delivery.attempts,
                    message.created_at,
                    bytes(delivery.payload),
                )
            )
        return found

    async def retry(self, queue: QueueRef, subscription_id: str, delivery_id: str) -> None:
        """Deliver again: a failed delivery by its id, or a message that the queue still has.

        Raises:
            NotFound: no such subscription; or neither there is.
        """
        subscription = await self._subscriptions.get(queue, subscription_id)
        failed = failed_queue(queue.project, subscription_id)
        now = self._clock.now_ms()
        ids = (delivery_id,) if is_message_id(delivery_id) else ()
        if ids and (found := await self._messages.get_messages(failed, ids)):
            delivery = decode_delivery(found[0].body)
            delivery.until = max(delivery.until, now + _RETRIED_MS)
        elif ids and (found := await self._messages.get_messages(queue, ids)):
            (message,) = found
            note = Note(
                message.id,
                queue.project,
                queue.name,
                message.created_at,
                message.expires_at,
                message.ttl_ms // 1000,
                msgspec.Raw(message.body),
            )
            delivery = _first(subscription, note)
        else:
            raise NotFound(f"There is no delivery and no message {delivery_id!r} (any more).")
        delivery.attempts, delivery.reason = 0, ""
        await self._messages.post(
            retries_of(queue.project),
            [NewMessage(encode(delivery), delivery.until - now + LEASE_MS)],
            client_id=CLIENT_ID,
            version=None,
        )
        await self._messages.delete(failed, ids, claim_ids=None)

    async def ping(self, queue: QueueRef, subscription_id: str) -> Result:
        """Send a test notification at once, and answer what came back.

        Raises:
            NotFound: no such subscription.
        """
        subscription = await self._subscriptions.get(queue, subscription_id)
        payload = encode({"body": None, "queue_name": queue.name, "Message_Type": "Ping"})
        delivery = Delivery(
            queue.project,
            queue.name,
            subscription.id,
            "",
            self._clock.now_ms(),
            msgspec.Raw(payload),
            kind="Ping",
        )
        result = await self._courier.attempt(delivery, subscription, None, is_fresh=False)
        if result.fate is Fate.DEFERRED:
            return result._replace(wait=max(result.wait, 1.0))
        return result


def _first(subscription: Subscription, note: Note) -> Delivery:
    """The first delivery of a note to a subscription."""
    return Delivery(
        note.project,
        note.queue,
        subscription.id,
        note.id,
        note.until,
        msgspec.Raw(payload_of(note)),
    )
