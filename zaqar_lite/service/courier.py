"""One attempt to deliver: what is sent, what the answer means, and when it is tried again."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import random
from typing import NamedTuple, Protocol

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.domain.retry_policy import ATTRIBUTE as RETRY_POLICY
from zaqar_lite.domain.retry_policy import chosen_policy, retry_delay
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import queue_in
from zaqar_lite.service.endpoints import Endpoints, Health
from zaqar_lite.service.notes import Delivery
from zaqar_lite.webhooks import signed_headers

logger = logging.getLogger(__name__)
_PATIENCE = 1.0
"""Seconds that a delivery waits for a place in its endpoint's window."""
_MAX_RETRY_AFTER = 3_600.0
_SHORTEST_DEFERRAL = 1.0
_TOKEN = b'"$zaqar_message$"'
_TRY_AGAIN = frozenset((408, 425, 429))


class Letter(NamedTuple):
    """What is sent, to whom."""

    subscriber: str
    headers: Mapping[str, str]
    body: bytes
    options: Mapping[str, object]
    project: str = ""
    id: str = ""
    trust: str = ""

    def __repr__(self) -> str:
        """Show neither headers nor a body, which may hold secrets."""
        return f"Letter({self.id!r}, {self.project!r})"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status, or why there is none; the first KiB of the body, as text.

    `refused` says that this server will not send there at all (the SSRF guard).
    """

    status: int | None = None
    error: str = ""
    text: str = ""
    retry_after: float | None = None
    refused: bool = False


class Transport(Protocol):
    """What sends letters to the subscribers of some schemes."""

    async def send(self, letter: Letter) -> Answer:
        """Send a letter; whatever goes wrong is in the answer."""

    async def close(self) -> None:
        """Close all connections; a later `send` opens new ones."""


class Fate(Enum):
    """What becomes of a delivery after an attempt.

    DONE      it was received.
    AGAIN     it is tried again later.
    FINAL     it can't be delivered.
    GONE      the receiver wants no more messages.
    DEFERRED  it was not tried: its endpoint had no place for it.
    """

    DONE = "delivered"
    AGAIN = "failed"
    FINAL = "undeliverable"
    GONE = "gone"
    DEFERRED = "deferred"


class Result(NamedTuple):
    """The fate of a delivery, with the seconds until it is tried again, and how it was answered."""

    fate: Fate
    wait: float = 0.0
    answer: Answer = Answer()
    milliseconds: int = 0
    at: int = 0


class Courier:
    """Attempt deliveries, within the window of each endpoint."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        clock: Clock,
        *,
        has_ended: Callable[[Subscription], bool],
    ) -> None:
        self._transports = transports
        self._clock = clock
        self._has_ended = has_ended
        self._endpoints = Endpoints()

    async def close(self) -> None:
        """Close all connections."""
        for transport in {id(one): one for one in self._transports.values()}.values():
            await transport.close()

    async def attempt(
        self,
        delivery: Delivery,
        subscription: Subscription,
        queue_policy: object,
        *,
        is_fresh: bool,
    ) -> Result:
        """Try once. A first try is deferred, not made, where its endpoint is failing."""
        endpoint = self._endpoints.of(subscription.queue.project, subscription.subscriber)
        if is_fresh and endpoint.health is Health.FAILING:
            return Result(Fate.DEFERRED, endpoint.closed_for())
        if not await endpoint.enter(_PATIENCE):
            return Result(Fate.DEFERRED, max(endpoint.closed_for(), _SHORTEST_DEFERRAL))
        if self._has_ended(subscription):  # while it waited for its place
            endpoint.leave(None)
            return Result(Fate.DEFERRED)
        at, begun = self._clock.now_ms(), time.perf_counter()
        succeeded: bool | None = None
        slow = False
        try:
            answer = await self._answer(delivery, subscription)
            status = answer.status
            slow = status is None or status == 429 or status >= 500
            if not answer.refused:
                succeeded = not slow and status not in _TRY_AGAIN
        finally:
            endpoint.leave(succeeded, is_slow=slow)
        milliseconds = round((time.perf_counter() - begun) * 1000)
        fate = _fate(answer)
        wait = 0.0
        if fate is Fate.AGAIN:
            delay = self._delay(delivery, subscription, queue_policy, answer)
            if delay is None:
                fate = Fate.FINAL
            else:
                wait = delay
        return Result(fate, wait, answer, milliseconds, at)

    async def _answer(self, delivery: Delivery, subscription: Subscription) -> Answer:
        """Send a delivery. A bug of a transport is a failed attempt, so retries come to an end."""
        try:
            return await self._send(delivery, subscription)
        except ZaqarLiteError:
            raise  # a store is away, so nothing was attempted
        except Exception:
            logger.exception("a delivery could not be sent")
            return Answer(error="this server could not send it")

    async def _send(self, delivery: Delivery, subscription: Subscription) -> Answer:
        transport = self._transports.get(subscription.subscriber.partition(":")[0].lower())
        if transport is None:
            return Answer(error="this server does not deliver to this scheme", refused=True)
        if queue_in(subscription.subscriber) is None:
            return await transport.send(self.letter(delivery, subscription))
        project, body = delivery.project, bytes(delivery.payload)
        return await transport.send(
            Letter(subscription.subscriber, {}, body, subscription.options, project, delivery.id)
        )

    def letter(self, delivery: Delivery, subscription: Subscription) -> Letter:
        """Write what is sent: upstream's document, and the headers of Standard Webhooks."""
        body = bytes(delivery.payload)
        options = subscription.options
        post_data = options.get("post_data")
        if isinstance(post_data, str) and post_data:
            body = post_data.encode().replace(_TOKEN, body)
        headers = {"content-type": "application/json", "user-agent": "zaqar-lite", **delivery.trace}
        own = options.get("post_headers")
        if isinstance(own, dict):
            headers |= {name.lower(): value for name, value in own.items()}
        now = self._clock.now_ms()
        live = [key.text for key in subscription.secrets if key.until is None or key.until > now]
        message_id = f"msg_{delivery.id or secrets.token_hex(16)}"
        headers |= signed_headers(live, message_id=message_id, timestamp=now // 1000, body=body)
        return Letter(subscription.subscriber, headers, body, options, trust=subscription.trust)

    @staticmethod
    def _delay(
        delivery: Delivery, subscription: Subscription, queue_policy: object, answer: Answer
    ) -> float | None:
        policy = chosen_policy(queue_policy, subscription.options.get(RETRY_POLICY))
        delay = retry_delay(policy, delivery.attempts + 1, random())  # noqa: S311 - jitter
        if delay is None or answer.retry_after is None:
            return delay
        return max(delay, min(answer.retry_after, _MAX_RETRY_AFTER))


def _fate(answer: Answer) -> Fate:
    if answer.refused:
        return Fate.FINAL
    status = answer.status
    if status is None or status in _TRY_AGAIN or status >= 500:
        return Fate.AGAIN
    if 200 <= status < 300:
        return Fate.DONE
    return Fate.GONE if status == 410 else Fate.FINAL
