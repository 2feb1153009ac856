"""What a post leaves for its subscribers: one durable note a message, in a queue of our own.

A note is stored after its message and before the post is answered, so what was acknowledged will be
delivered; a post that fails in between may have stored its messages without a note, as an answer of
503 says. A note of a delayed message waits until its message is due.

The queues of this module have names that no client can write (`~`), and no records.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import LimitReached, Unavailable
from zaqar_lite.domain.models import IdempotencyKey, NewMessage, Posted, QueueRef
from zaqar_lite.storage.base import MessageStore

if TYPE_CHECKING:
    from zaqar_lite.service.policy import Policies, Policy

NOTES = QueueRef("~deliveries", "~new")
RETRIES = QueueRef("~deliveries", "~again")
LEAD_MS = 500
"""So long before it is due a delayed message is looked at: was it deleted, or edited?"""
_RETRY_AFTER = 30
_SAME = bytes(16)


class Note(msgspec.Struct, omit_defaults=True):
    """A message to deliver: instants in milliseconds, `ttl` and `delay` in seconds."""

    project: str
    queue: str
    id: str
    posted_at: int
    until: int
    ttl: int
    body: msgspec.Raw
    delay: int | None = None
    due_at: int = 0


class Delivery(msgspec.Struct, omit_defaults=True):
    """A message on its way to one subscription, for a later try; `payload` is what it is sent.

    `attempts` counts the tries so far. `kind` is Zaqar's `Message_Type`.
    """

    project: str
    queue: str
    subscription: str
    id: str
    until: int
    payload: msgspec.Raw
    attempts: int = 0
    kind: str = "Notification"
    reason: str = ""


encode = msgspec.json.encode
decode_note = msgspec.json.Decoder(Note).decode
decode_delivery = msgspec.json.Decoder(Delivery).decode


def failed_queue(project: str, subscription_id: str) -> QueueRef:
    """The queue of what could not be delivered to a subscription."""
    return QueueRef(project, f"~failed.{subscription_id}")


class Notes:
    """Store the notes of posts."""

    def __init__(self, messages: MessageStore, policies: "Policies", clock: Clock) -> None:
        self._messages = messages
        self._policies = policies
        self._clock = clock

    async def add(
        self,
        queue: QueueRef,
        policy: "Policy",
        new: Sequence[NewMessage],
        posted: Sequence[Posted],
        *,
        keyed: bool,
    ) -> None:
        """Note what was posted, for the queue and for those that got copies.

        `keyed` is whether the post can be repeated: then its notes can, too.

        Raises:
            Unavailable: the notes can't be stored now; the messages are.
        """
        notes: list[NewMessage] = []
        copied = {copy.queue for message in new for copy in message.copies}
        listening = {
            ref: of_copy for ref in copied if (of_copy := await self._policies.get(ref)).subscribed
        }
        if not policy.subscribed and not listening:
            return
        now = self._clock.now_ms()
        for message, receipt in zip(new, posted, strict=True):
            if policy.subscribed:
                delays = policy.default_delay_ms > 0
                notes.append(
                    self._note(
                        queue,
                        message,
                        receipt,
                        now,
                        delay_ms=message.delay_ms if delays else None,
                        at_once=policy.notify_on_post,
                        keyed=keyed or message.idempotency_key is not None,
                    )
                )
            for copy in message.copies:
                if copy.queue not in listening:
                    continue
                theirs = listening[copy.queue]
                entry = message._replace(ttl_ms=copy.ttl_ms, delay_ms=copy.delay_ms)
                notes.append(
                    self._note(
                        copy.queue,
                        entry,
                        receipt,
                        now,
                        delay_ms=copy.delay_ms if theirs.default_delay_ms else None,
                        at_once=theirs.notify_on_post,
                        keyed=keyed or message.idempotency_key is not None,
                    )
                )
        if notes:
            try:
                await self._messages.post(NOTES, notes, client_id=CLIENT_ID, version=None)
            except LimitReached:
                # The limit of our own queue; told as it is, it would say that nothing was stored.
                raise Unavailable(
                    "The messages are stored, but too many wait for subscribers to note these.",
                    retry_after=_RETRY_AFTER,
                ) from None

    @staticmethod
    def _note(
        queue: QueueRef,
        message: NewMessage,
        receipt: Posted,
        now: int,
        *,
        delay_ms: int | None,
        at_once: bool,
        keyed: bool,
    ) -> NewMessage:
        waits_ms = 0 if at_once else delay_ms or 0
        note = Note(
            queue.project,
            queue.name,
            receipt.id,
            now,
            now + message.ttl_ms,
            message.ttl_ms // 1000,
            msgspec.Raw(message.body),
            None if delay_ms is None else delay_ms // 1000,
            now + waits_ms if waits_ms else 0,
        )
        key = IdempotencyKey(f"{receipt.id}.{queue.name}"[:128], _SAME) if keyed else None
        wait = max(waits_ms - LEAD_MS, 0)
        return NewMessage(encode(note), message.ttl_ms + LEAD_MS, wait, key)


CLIENT_ID = "7a6171617200400080006c6974650000"
"""Who posts and claims in the queues of this module."""


def payload_of(note: Note) -> bytes:
    """The notification of a message, with upstream's keys and no others."""
    document: dict[str, object] = {"body": note.body, "ttl": note.ttl}
    if note.delay is not None:
        document["delay"] = note.delay
    document["queue_name"] = note.queue
    document["Message_Type"] = "Notification"
    return encode(document)
