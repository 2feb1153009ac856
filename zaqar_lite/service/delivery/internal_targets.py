"""Subscribers inside the server: queues of the project, and connections of some process.

A subscriber that is a connection is `websocket:NODE/ID`: the server itself writes it, no client
can. A process without the connection hands the notification to the one that has it, through a queue
of the server's own. If that process has ended, the notification expires a minute later. Nothing is
kept for a connection that has gone: its subscriptions end with it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, KeyReused, TooMany, Unavailable, ZaqarLiteError
from zaqar_lite.domain.identity import DELIVERIES_PROJECT
from zaqar_lite.domain.models import Message, QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.topics import queue_in
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.background import Worker
from zaqar_lite.service.delivery.attempt import Answer, Notification, Transport
from zaqar_lite.service.delivery.outbox import QueueWorker, decode_forwarded, encode, put
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.service.records import is_sealed
from zaqar_lite.storage.base import MessageStore

if TYPE_CHECKING:
    from zaqar_lite.service.encryption import EncryptionKeys

SCHEME = "websocket"
_HANDED_MS = 60_000
Push = Callable[[bytes], bool]
"""Sends a document on a connection; False where that has ended."""


class _Handed(msgspec.Struct):
    """A notification for another process: who listens there, and what it is sent."""

    listener: str
    text: str


_decode = msgspec.json.Decoder(_Handed).decode


def process_queue(node: str) -> QueueRef:
    """The queue of what others hand to a process."""
    return QueueRef(DELIVERIES_PROJECT, f"~socket.{node}")


@dataclass(eq=False, repr=False)
class ConnectedSubscribers(Transport, Worker):
    """The connections of this process that listen, as a transport of notifications."""

    messages: MessageStore
    long_polling: LongPolling
    encryption_keys: "EncryptionKeys | None" = None

    def __post_init__(self) -> None:
        self._node = secrets.token_hex(8)
        self._pushes: dict[str, Push] = {}
        self._worker = QueueWorker(
            process_queue(self._node),
            self._take,
            messages=self.messages,
            long_polling=self.long_polling,
        )

    def add(self, push: Push) -> str:
        """Let a connection listen; answer its subscriber."""
        self._worker.start()  # a process on which nobody listens looks for no notifications
        listener = secrets.token_hex(16)
        self._pushes[listener] = push
        return f"{SCHEME}:{self._node}/{listener}"

    def remove(self, subscriber: str) -> None:
        """Let a connection listen no more."""
        self._pushes.pop(subscriber.rpartition("/")[2], None)

    async def stop(self) -> None:
        """Take nothing more."""
        await self._worker.stop()

    async def send(self, notification: Notification) -> Answer:
        """Send a notification, or hand it to the process that has the connection."""
        node, _, listener = notification.subscriber.partition(":")[2].partition("/")
        if node == self._node:
            return self._push(listener, notification.body)
        worker = process_queue(node)
        handed = encode(_Handed(listener, notification.body.decode("utf-8", "replace")))
        if self.encryption_keys is not None:  # it was opened to be sent, not to be kept
            handed = await self.encryption_keys.seal_body(worker, handed)
        await put(self.messages, worker, NewMessage(handed, _HANDED_MS))
        return Answer(status=202)

    async def _take(self, message: Message) -> None:
        body = message.body
        if self.encryption_keys is not None and is_sealed(body):
            body = await self.encryption_keys.open_body(process_queue(self._node).project, body)
        handed = _decode(body)
        self._push(handed.listener, handed.text.encode())

    def _push(self, listener: str, body: bytes) -> Answer:
        push = self._pushes.get(listener)
        if push is None or not push(body):
            return Answer(status=410, error="the connection has ended")
        return Answer(status=200)


class QueueTarget(Transport):
    """Post each notification once to a queue of its project, with its id as idempotency key."""

    def __init__(self, messages: Messages, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock

    async def send(self, notification: Notification) -> Answer:
        """Post a notification; what the queue refuses is in the answer."""
        await next_turn()  # a post in this process may wait for nothing, and many queues subscribe
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
