"""Deliver to subscribers that are queues, by posting to them as any client does."""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, KeyReused, TooMany, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.topics import queue_in
from zaqar_lite.service.delivery.attempt import Answer, Notification
from zaqar_lite.service.delivery.outbox import decode_forwarded
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.post_validation import Draft


class QueueTarget:
    """Post each notification once to a queue of its project, with its id as idempotency key."""

    def __init__(self, messages: Messages, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock

    async def send(self, notification: Notification) -> Answer:
        """Post a notification; what the queue refuses is in the answer."""
        found = decode_forwarded(notification.body)
        delay = found.delay_left(self._clock.now_ms())
        draft = Draft(
            bytes(found.body), found.ttl, delay, f"topic.{notification.id}", found.headers
        )
        queue = QueueRef(notification.project, queue_in(notification.subscriber) or "")
        try:
            await self._messages.post(
                queue, [draft], size=len(draft.body), client_id=found.client_id
            )
        except (Unavailable, TooMany) as exc:
            return Answer(status=503, error=str(exc))
        except KeyReused:
            return Answer(status=409, error="the queue has another message under this id")
        except Invalid as exc:
            return Answer(status=400, error=str(exc))
        except ZaqarLiteError as exc:  # the queue is full, or the project's quota: later, perhaps
            return Answer(status=429, error=str(exc))
        return Answer(status=201)

    async def close(self) -> None:
        """Nothing is open."""
