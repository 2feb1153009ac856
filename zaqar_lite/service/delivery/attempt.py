"""One attempt to deliver: what is sent, what the answer means, and when it is tried again."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import random, uniform
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.retry_policy import ATTRIBUTE as RETRY_POLICY
from zaqar_lite.domain.retry_policy import chosen_policy, retry_delay
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import queue_in
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.delivery.outbox import Delivery
from zaqar_lite.webhooks import signed_headers

if TYPE_CHECKING:
    from zaqar_lite.service.encryption import EncryptionKeys

_FIRST_WINDOW = 2
_LARGEST_WINDOW = 64
_MOST_WAITING = 1_000
_FIRST_PATIENCE = 0.25
"""Seconds for which a delivery waits for an endpoint of which nothing is known yet."""
_FAILURES = 5
_SHORTEST = 10.0
_LONGEST = 600.0
_SHORTEST_DEFERRAL, _SPACING = 1.0, 0.002
"""Seconds until a delivery that found no place asks again, and between two of them."""
_MAX_CACHED = 10_000


class Endpoint:
    """One endpoint: its window, the deliveries that wait for a place in it, and its breaker."""

    def __init__(self) -> None:
        self.is_new = True
        """Nothing is known of it yet."""
        self.window = _FIRST_WINDOW
        self.under_way = 0
        self.failures = 0
        self.opened_until = 0.0
        self._round = 0
        self._pause = _SHORTEST
        self._comes_back = 0.0
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def closed_for(self) -> float:
        """Seconds until the breaker lets a call through; 0 when it does."""
        return max(self.opened_until - time.monotonic(), 0.0)

    def deferral(self) -> float:
        """Seconds until a delivery without a place asks again; they come back one by one.

        Thousands would find no place either if they came at once, again and again.
        """
        now = time.monotonic()
        earliest = now + max(self.closed_for(), _SHORTEST_DEFERRAL)
        self._comes_back = max(self._comes_back + _SPACING, earliest)
        return self._comes_back - now

    async def enter(self, seconds: float) -> bool:
        """Take a place in the window, waiting for one if need be; answer whether there was one.

        No delivery waits for an endpoint that is failing, and none waits long for one that was
        never called: meanwhile it would keep a place from messages for other endpoints.
        """
        if self.closed_for():
            return False
        if self.failures >= _FAILURES and self.under_way:
            return False  # this call tries whether it answers again
        if self.under_way < self.window:
            self.under_way += 1
            return True
        if self.failures or len(self._waiting) >= _MOST_WAITING:
            return False
        if self.is_new:
            seconds = min(seconds, _FIRST_PATIENCE)
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await asyncio.wait((place,), timeout=seconds)
        except asyncio.CancelledError:
            if place.done() and place.result():
                self.leave(None)
            raise
        finally:
            place.cancel()  # nobody gives a place to who waits no more
        return not place.cancelled() and place.result()

    def leave(self, succeeded: bool | None, *, is_slow: bool = False) -> None:
        """Give a place back: the call succeeded, failed, or said nothing of the endpoint (None)."""
        self.under_way -= 1
        self.is_new = self.is_new and succeeded is None
        if succeeded:
            self._succeeded()
        elif succeeded is not None:
            self._failed(is_slow=is_slow)
        while self._waiting and self.under_way < self.window and not self.closed_for():
            place = self._waiting.popleft()
            if not place.done():
                self.under_way += 1
                place.set_result(True)

    def _succeeded(self) -> None:
        self.failures = 0
        self._pause = _SHORTEST
        self._round += 1
        if self._round >= self.window:
            self._round = 0
            self.window = min(self.window * 2, _LARGEST_WINDOW)

    def _failed(self, *, is_slow: bool) -> None:
        self.failures += 1
        self._round = 0
        if is_slow:
            self.window = max(self.window // 2, 1)
        if self.failures >= _FAILURES:
            self.opened_until = time.monotonic() + self._pause * uniform(0.8, 1.2)  # noqa: S311
            self._pause = min(self._pause * 2, _LONGEST)
        while self._waiting:  # those that wait are tried later, as it does not answer
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(False)


def endpoint_of(project: str, subscriber: str) -> tuple[str, str]:
    """Name the endpoint of a subscriber: a queue is one by itself, and so is each host."""
    parts = urlsplit(subscriber)
    address = parts.netloc.lower() or queue_in(subscriber) or ""
    return project, f"{parts.scheme}://{address}"


logger = logging.getLogger(__name__)
_PATIENCE = 1.0
"""Seconds that a delivery waits for a place in its endpoint's window."""
_LONGEST_ATTEMPT = 25.0
"""Seconds. A mail server may be slow at each command, and many may wait for a trust's token."""
_MAX_RETRY_AFTER = 3_600.0
_LARGE = 16_384
"""Bytes of a payload that is copied and signed in a turn: a message may go to 200 subscribers."""
_TOKEN = b'"$zaqar_message$"'
_MOST_REPEATED = 1_048_576
"""Bytes that a notification may take up in a request where `post_data` has several places for it.

There may be 1,700 of them, and 450 MB took 9 s of everybody's time at each try.
"""
_TRY_AGAIN = frozenset((408, 425, 429))


class Notification(NamedTuple):
    """What a subscriber is sent: a message, or a request to confirm."""

    subscriber: str
    headers: Mapping[str, str]
    body: bytes
    options: Mapping[str, object]
    project: str = ""
    id: str = ""
    trust: str = ""

    def __repr__(self) -> str:
        """Show neither headers nor a body, which may hold secrets."""
        return f"Notification({self.id!r}, {self.project!r})"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status, or an error; `text` is the first KiB of the body.

    `refused` means that this server will never send there, because of the SSRF guard for example.
    """

    status: int | None = None
    error: str = ""
    text: str = ""
    retry_after: float | None = None
    refused: bool = False


class Transport(ABC):
    """What sends notifications to the subscribers of some schemes."""

    @abstractmethod
    async def send(self, notification: Notification) -> Answer:
        """Send a notification; whatever goes wrong is in the answer."""

    async def close(self) -> None:  # noqa: B027 - most keep nothing open
        """Close what is kept open."""


class DeliveryOutcome(Enum):
    """What one attempt to deliver led to.

    DONE      it was received.
    AGAIN     it is tried again later.
    FINAL     it can't be delivered.
    GONE      the receiver wants no more messages.
    DEFERRED  it was not tried: its endpoint is failing, or has as many calls as it may have.
    """

    DONE = "delivered"
    AGAIN = "failed"
    FINAL = "undeliverable"
    GONE = "gone"
    DEFERRED = "deferred"


class Result(NamedTuple):
    """The outcome of an attempt, the seconds until the next one, and what was answered."""

    outcome: DeliveryOutcome
    wait: float = 0.0
    answer: Answer = Answer()
    milliseconds: int = 0
    at: int = 0


@dataclass(eq=False, repr=False)
class DeliverySender:
    """Attempt deliveries, within the window of each endpoint."""

    transports: Mapping[str, Transport]
    clock: Clock
    has_ended: Callable[[Subscription], bool]
    refusal: Callable[[str], str | None] = lambda _: None
    """Tells why a subscriber can't be called, as far as its URL shows that."""
    encryption_keys: "EncryptionKeys | None" = None

    def __post_init__(self) -> None:
        self._endpoints: Cache[tuple[str, str], Endpoint] = Cache(_MAX_CACHED)

    async def close(self) -> None:
        """Close all connections."""
        for transport in set(self.transports.values()):
            await transport.close()

    async def payload(self, delivery: Delivery) -> bytes:
        """What a receiver gets: the body as it was posted, which stays sealed where it is kept."""
        payload = bytes(delivery.payload)
        if self.encryption_keys is None:
            return payload
        return await self.encryption_keys.open_in(delivery.project, payload)

    async def sealed(self, queue: QueueRef, body: bytes, *, is_secret: bool) -> bytes:
        """Seal what a queue keeps, where it, or the message that this is about, is sealed."""
        if self.encryption_keys is None or not is_secret:
            return body
        return await self.encryption_keys.seal_body(queue, body)

    async def attempt(
        self,
        delivery: Delivery,
        subscription: Subscription,
        queue_policy: object,
        *,
        is_fresh: bool,
    ) -> Result:
        """Try once. The first try of a delivery is deferred while its endpoint is failing."""
        key = endpoint_of(subscription.queue.project, subscription.subscriber)
        endpoint = self._endpoints[key] = self._endpoints.get(key) or Endpoint()
        if is_fresh and endpoint.failures:
            return Result(DeliveryOutcome.DEFERRED, endpoint.closed_for())
        if not await endpoint.enter(_PATIENCE):
            return Result(DeliveryOutcome.DEFERRED, endpoint.deferral())
        if self.has_ended(subscription):  # while it waited for its place
            endpoint.leave(None)
            return Result(DeliveryOutcome.DEFERRED, _SHORTEST_DEFERRAL)
        at, begun = self.clock.now_ms(), time.perf_counter()
        succeeded: bool | None = None
        slow = False
        try:
            answer = await self._send(delivery, subscription)
            slow = answer.status is None or answer.status == 429 or answer.status >= 500
            if not answer.refused:
                succeeded = not slow and answer.status not in _TRY_AGAIN
        except ZaqarLiteError:
            raise  # a store is away, so nothing was attempted
        except Exception:  # a bug of a transport is a failed attempt, so retries come to an end
            logger.exception("a delivery could not be sent")
            answer, succeeded, slow = Answer(error="this server could not send it"), False, True
        finally:
            endpoint.leave(succeeded, is_slow=slow)
        milliseconds = round((time.perf_counter() - begun) * 1000)
        outcome, wait = _outcome(answer, delivery, subscription, queue_policy)
        return Result(outcome, wait, answer, milliseconds, at)

    async def _send(self, delivery: Delivery, subscription: Subscription) -> Answer:
        transport = self.transports.get(subscription.subscriber.partition(":")[0].lower())
        if transport is None:
            return Answer(error="this server does not deliver to this scheme", refused=True)
        if len(delivery.payload) >= _LARGE:
            await next_turn()
        body = await self.payload(delivery)
        options, headers = subscription.options, {}
        if queue_in(subscription.subscriber) is None:
            post_data = options.get("post_data")
            if isinstance(post_data, str) and post_data:
                frame = post_data.encode()
                places = frame.count(_TOKEN)
                if places > 1 and places * len(body) > _MOST_REPEATED:
                    return Answer(error="post_data repeats what is too large", refused=True)
                body = frame.replace(_TOKEN, body)
            headers = self._headers(delivery, body, subscription)
        notification = Notification(
            subscription.subscriber,
            headers,
            body,
            options,
            delivery.project,
            delivery.id,
            subscription.trust,
        )
        try:
            async with asyncio.timeout(_LONGEST_ATTEMPT):
                return await transport.send(notification)
        except TimeoutError:
            return Answer(error="no answer in time")

    def _headers(
        self, delivery: Delivery, body: bytes, subscription: Subscription
    ) -> dict[str, str]:
        """The headers of a request: the subscription's own, and those of Standard Webhooks."""
        headers = {"content-type": "application/json", "user-agent": "zaqar-lite", **delivery.trace}
        own = subscription.options.get("post_headers")
        if isinstance(own, dict):
            headers |= {name.lower(): value for name, value in own.items()}
        now = self.clock.now_ms()
        live = [key.text for key in subscription.secrets if key.until is None or key.until > now]
        message_id = f"msg_{delivery.id}"
        signed = signed_headers(live, message_id=message_id, timestamp=now // 1000, body=body)
        return {**headers, **signed}


def _outcome(
    answer: Answer, delivery: Delivery, subscription: Subscription, queue_policy: object
) -> tuple[DeliveryOutcome, float]:
    """What an answer means, and the seconds until the next try."""
    status = answer.status
    if answer.refused:
        return DeliveryOutcome.FINAL, 0.0
    if status is not None and status not in _TRY_AGAIN and status < 500:
        if 200 <= status < 300:
            return DeliveryOutcome.DONE, 0.0
        return (DeliveryOutcome.GONE if status == 410 else DeliveryOutcome.FINAL), 0.0
    policy = chosen_policy(queue_policy, subscription.options.get(RETRY_POLICY))
    delay = retry_delay(policy, delivery.attempts + 1, random())  # noqa: S311 - jitter
    if delay is None:
        return DeliveryOutcome.FINAL, 0.0
    return DeliveryOutcome.AGAIN, max(delay, min(answer.retry_after or 0.0, _MAX_RETRY_AFTER))
