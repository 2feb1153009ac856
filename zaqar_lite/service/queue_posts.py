"""What delivers to subscribers that are queues: it posts to them, as any client does."""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, KeyReused, TooMany, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.topics import queue_in
from zaqar_lite.service.courier import Answer, Letter
from zaqar_lite.service.drafts import Draft
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.notes import decode_forwarded


class QueuePosts:
    """Post letters to queues of their project, each once: a letter's id is its key there."""

    def __init__(self, messages: Messages, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock

    async def send(self, letter: Letter) -> Answer:
        """Post a letter; what the queue refuses is in the answer."""
        found = decode_forwarded(letter.body)
        delay = found.delay_left(self._clock.now_ms())
        draft = Draft(bytes(found.body), found.ttl, delay, f"topic.{letter.id}", found.headers)
        queue = QueueRef(letter.project, queue_in(letter.subscriber) or "")
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
