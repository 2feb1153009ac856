"""Hand due messages to Zaqar: consume the end queue, post, and acknowledge after the 201.

Delivery is at least once: a message leaves RabbitMQ only when Zaqar has stored it, or when the
queue `failed` has confirmed it with the reason. The AMQP message id is the idempotency key,
so a redelivery (a crash between 201 and acknowledgement, a broker's restart) stores nothing
twice. Any number of relays may consume one queue.

While Zaqar is overloaded or away the relay keeps the messages that it has, at most its prefetch,
and takes no others. It does not return messages in a loop, since newer brokers count every return
against a delivery limit.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError

from zaqar_lite.client import AsyncClient
from zaqar_lite.client.calls import NO_PROJECT
from zaqar_lite.client.errors import BadAnswer, KeyReused, Refused, ServerFault, ZaqarError
from zaqar_lite.domain.errors import Forbidden, Invalid, Unavailable
from zaqar_lite.rabbitmq.amqp import LOST, connected
from zaqar_lite.rabbitmq.cancellations import Cancellations
from zaqar_lite.rabbitmq.messages import DUE, FAILED_REASON, FAILED_STATUS, ZaqarMessage, copy_of
from zaqar_lite.rabbitmq.metrics import RelayMetrics
from zaqar_lite.rabbitmq.topology import Topology

LOG = logging.getLogger(__name__)

ClientFor = Callable[[str | None], AsyncClient]

CLOSE_TIMEOUT = 10.0  # seconds

# 4xx that another try may mend: a new token, a timeout, a queue that was being changed.
_COME_BACK = frozenset({401, 408, 409, 425})


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """How a relay behaves; times in seconds.

    Attributes:
        prefetch: how many messages it holds at most, and posts at once.
        base: the first back-off; it doubles with every failure.
        cap: the longest back-off.
        hold: how long one message is held before it goes back to the queue, and a Retry-After is
            obeyed. It must be less than the broker's consumer_timeout, 1800 by default.
        faults: how many answers 500 a message may cause before it is parked: it may be the cause.
        drain: how long to wait at the end for posts under way.
        check: how often to look whether the broker has cancelled this consumer.
        renew: how long nothing may come before the channel is opened anew.
    """

    prefetch: int = 32
    base: float = 0.2
    cap: float = 30.0
    hold: float = 900.0
    faults: int = 8
    drain: float = 30.0
    check: float = 1.0
    renew: float = 60.0


class _Cancelled(Exception):
    """The id of a message is among those that are cancelled."""


class Relay:
    """One consumer of a destination's queue.

    Args:
        url: the broker, `amqp://...`.
        topology: the one that was applied there.
        client_for: returns the SDK client of a project; None is the credential's own. Give the
            clients `RetryPolicy(attempts=1)`: the relay itself decides when to post again.
        destination: whose queue to consume.
        options: how to behave.
    """

    def __init__(
        self,
        url: str,
        topology: Topology,
        client_for: ClientFor,
        *,
        destination: str = "zaqar",
        options: RelayOptions | None = None,
    ) -> None:
        topology.routing_key(0, destination)  # Invalid where there is no such destination
        self.metrics = RelayMetrics()
        self._url = url
        self._topology = topology
        self._source = topology.targets[destination]
        self._client_for = client_for
        self._default: str | None = None  # what "default" means: the credential's own project
        self._options = options or RelayOptions()
        self._resume_at = 0.0  # monotonic; nobody posts before
        self._strain = 0  # failures in a row, of any message
        self._taken = 0  # messages delivered to this relay
        self._has_consumed = False  # whether the broker has let it, so that it may again
        self._cancelled = Cancellations(topology)

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, then drain. A lost broker is looked for until it is back.

        Raises:
            Forbidden: the broker refuses this user, from the start.
        """
        failures = 0
        while not stop.is_set():
            started = time.monotonic()
            try:
                async with connected(self._url) as connection:
                    self.metrics.connections += 1
                    while not stop.is_set():
                        if not self._cancelled.is_followed:
                            await _unless(stop, self._cancelled.follow(connection))
                        await self._session(connection, stop)
            except (Forbidden, Unavailable, *LOST) as error:
                is_refusal = isinstance(error, Forbidden | aiormq.exceptions.ChannelAccessRefused)
                if is_refusal and not self._has_consumed:
                    raise Forbidden(f"the relay can't consume {self._source}: {error}") from error
                lasted = time.monotonic() - started > self._options.cap
                failures = 1 if lasted else failures + 1
                pause = self._backoff(failures)
                LOG.warning("nothing to consume, trying again in %.1f s: %s", pause, error)
                await _wait(stop, pause)

    def _backoff(self, failures: int) -> float:
        longest = min(self._options.cap, self._options.base * 2 ** min(failures, 20))
        return random.uniform(longest / 2, longest)  # noqa: S311 - jitter, not a secret

    async def _session(self, connection: AbstractConnection, stop: asyncio.Event) -> None:
        """Consume over one channel until the relay stops, or nothing has come for long.

        Raises:
            Unavailable: the broker has ended it.
        """
        ending = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        channel.close_callbacks.add(lambda *_: ending.set())
        await channel.set_qos(prefetch_count=self._options.prefetch)
        queue = await channel.get_queue(self._source, ensure=True)

        async def handle(message: AbstractIncomingMessage) -> None:
            self._taken += 1
            task = asyncio.create_task(self._handle(message, channel, ending))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        tag = await queue.consume(handle)
        self._has_consumed = True
        try:
            await self._watch(channel, tag, tasks, stop)
            ending.set()
            if stop.is_set() and not channel.is_closed:
                await queue.cancel(tag)
        finally:
            ending.set()
            if tasks:
                # A message that waits is given back; one that is being posted is finished.
                await asyncio.wait(tasks, timeout=self._options.drain)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await channel.close()

    async def _watch(
        self, channel: AbstractChannel, tag: str, held: Sized, stop: asyncio.Event
    ) -> None:
        """Wait until the relay stops, or the channel must be opened anew.

        It must where no message has come for long, or the stream of cancelled ids has ended.

        The broker cancels the consumer when the queue is deleted, and leaves the channel open; the
        library then only forgets the tag. A quorum queue that is deleted and at once made again is
        worse (RabbitMQ 3.10): often the broker keeps the consumer, counts messages as delivered to
        it, and sends none, until its channel is closed. That looks like a queue where nothing is
        due, so a channel on which nothing comes is opened anew from time to time.

        Raises:
            Unavailable: the broker has ended our consumer.
        """
        underlay = cast(aiormq.Channel, await channel.get_underlay_channel())
        taken, since = self._taken, time.monotonic()
        while not stop.is_set():
            await _wait(stop, self._options.check)
            if channel.is_closed or tag not in underlay.consumers:
                raise Unavailable(f"the consumer of {self._source} was ended by the broker")
            if held or taken != self._taken:
                taken, since = self._taken, time.monotonic()
            is_idle = time.monotonic() - since >= self._options.renew
            if is_idle or not self._cancelled.is_followed:
                return

    async def _handle(
        self, message: AbstractIncomingMessage, channel: AbstractChannel, ending: asyncio.Event
    ) -> None:
        """Post one message, then acknowledge it, park it, or give it back."""
        self.metrics.in_flight += 1
        self.metrics.redelivered += bool(message.redelivered)
        try:
            try:
                post = ZaqarMessage.read(message)
                if await self._deliver(post, message.message_id, ending):
                    await message.ack()
                    if isinstance(due := message.headers.get(DUE), int):
                        self.metrics.late(time.time() - due / 1000)
                elif not channel.is_closed:
                    await message.nack(requeue=True)
            except _Cancelled:
                await message.ack()
                self.metrics.cancelled += 1
                LOG.info("message %s was cancelled", message.message_id)
            except (Invalid, Refused, ServerFault, BadAnswer, TypeError, ValueError) as error:
                status = getattr(error, "status", 400) or "none"
                await self._park(message, channel, str(status), str(error))
        except Unavailable as error:
            LOG.error("message %s cannot even be parked: %s", message.message_id, error)
            await _wait(ending, self._options.cap)
            if not channel.is_closed:
                await message.nack(requeue=True)
        except LOST as error:
            # It may be neither acknowledged nor parked: then the broker delivers it again.
            LOG.warning("message %s comes again: %s", message.message_id, error)
        finally:
            self.metrics.in_flight -= 1

    async def _deliver(
        self, post: ZaqarMessage, message_id: str | None, ending: asyncio.Event
    ) -> bool:
        """Post until it is stored; False when it should be given back.

        Raises:
            _Cancelled: it is not to be posted.
            Refused: it can never be posted.
            ServerFault, BadAnswer: it was tried often, and may itself be the cause.
        """
        give_up = time.monotonic() + self._options.hold
        faults = 0
        while not ending.is_set() and time.monotonic() < give_up:
            await _wait(ending, self._resume_at - time.monotonic())
            if ending.is_set():
                break
            if self._cancelled.has(message_id):  # it may have been while Zaqar was away
                raise _Cancelled
            default = self._default
            try:
                await self._post(post, default if post.project == "default" else post.project)
            except (ServerFault, BadAnswer) as error:
                faults += 1
                if faults >= self._options.faults:
                    raise
                LOG.warning("answer %s to a post to %s", error.status, post.queue)
                await _wait(ending, self._backoff(faults))
            except Refused as error:
                if error.title == NO_PROJECT and default is None:
                    self._default = "default"  # an operator's key belongs to no project
                elif error.status in _COME_BACK and not isinstance(error, KeyReused):
                    self._pause(error)
                else:
                    raise
            except ZaqarError as error:  # overloaded, away, or not to be found
                self._pause(error)
            else:
                self._strain = 0
                return True
        return False

    async def _post(self, post: ZaqarMessage, project: str | None) -> None:
        status = "none"
        try:
            await self._client_for(project).post(
                post.queue,
                post.body,
                ttl=post.ttl,
                delay=0,  # the wait is over, whatever the queue's default delay is
                idempotency_key=post.key,
                headers=post.headers,
            )
            status = "201"
        except ZaqarError as error:
            status = str(error.status or "none")
            raise
        finally:
            self.metrics.posts[status] += 1

    def _pause(self, error: ZaqarError) -> None:
        """Pause all posts for a while; a pause that is already running is not extended."""
        now = time.monotonic()
        if now < self._resume_at:
            return
        self._strain += 1
        asked = getattr(error, "retry_after", None) or 0.0  # by a proxy, perhaps for days
        pause = min(asked, self._options.hold) + self._backoff(self._strain)
        self._resume_at = now + pause
        LOG.warning("Zaqar cannot take messages now, pausing %.1f s: %s", pause, error.title)

    async def _park(
        self, message: AbstractIncomingMessage, channel: AbstractChannel, status: str, reason: str
    ) -> None:
        """Move a message that can never be posted to the queue `failed`, and acknowledge it."""
        parked = copy_of(message, **{FAILED_STATUS: status, FAILED_REASON: reason[:1000]})
        try:
            await channel.default_exchange.publish(
                parked, self._topology.failed, mandatory=True, timeout=30
            )
        except (DeliveryError, TimeoutError) as lost:
            raise Unavailable(f"the queue {self._topology.failed} took nothing") from lost
        await message.ack()
        self.metrics.parked[status] += 1
        LOG.warning("message %s parked: %s", message.message_id, reason)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for so many seconds, or until the event is set."""
    if seconds > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do some work, and cancel it if the event comes first."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
