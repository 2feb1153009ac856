"""Cancel waiting messages by a log of their ids, which every relay reads.

A message can't be found while it passes through the level queues. So its id is written to the
stream `<prefix>.cancelled`, a queue from which reading removes nothing. A relay reads all of it
before it takes its first message, and follows it from then on. Messages with these ids are
acknowledged and not posted.

The stream is made when it is first needed. It keeps 100 MB, some 500,000 ids. A relay forgets an id
a day after the topology's longest delay has passed since it was cancelled.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal, cast

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError
from aiormq.exceptions import ChannelAccessRefused, ConnectionNotImplemented

from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.rabbitmq.amqp import LOST
from zaqar_lite.rabbitmq.messages import UNTIL
from zaqar_lite.rabbitmq.topology import Topology

LOG = logging.getLogger(__name__)

_ARGUMENTS: dict[str, Any] = {
    "x-queue-type": "stream",
    "x-max-length-bytes": 100_000_000,
    "x-stream-max-segment-size-bytes": 10_000_000,  # what is too old goes by whole segments
}
_A_DAY_MS = 86_400_000
_TIMEOUT = 30.0  # seconds, for a confirm, and for each 500 entries that a relay reads at its start
_AT_ONCE = 500
_TIDIED = 10_000


async def cancel(connection: AbstractConnection, topology: Topology, message_id: str) -> None:
    """Keep the relays from posting what waits, or comes, under an id until its time has passed.

    Relays that run have read it within a second; those that start later read it first.

    Raises:
        Invalid: it is not an id.
        Unavailable: the broker has no such topology, or did not confirm.
    """
    if not message_id:
        raise Invalid("a message is cancelled by its id, which is not empty")
    until = int(time.time() * 1000) + topology.maximum * topology.unit_ms + _A_DAY_MS
    try:
        async with connection.channel(publisher_confirms=True, on_return_raises=True) as channel:
            await channel.get_exchange(topology.parking, ensure=True)
            await _stream(channel, topology)
            await _write(channel, topology, message_id, until)
    except ChannelNotFoundEntity as error:
        text = f"the broker has no topology {topology.prefix!r}: see --prefix"
        raise Unavailable(text) from error
    except (DeliveryError, *LOST) as error:
        raise Unavailable(f"{message_id!r} may or may not be cancelled: {error!r}") from error


class Cancellations:
    """The ids that a relay does not post."""

    def __init__(self, topology: Topology, *, now: Callable[[], float] = time.time) -> None:
        self._topology = topology
        self._now = now
        self._until: dict[str, int] = {}  # milliseconds since 1970
        self._next: Literal["first"] | int = "first"
        self._read = asyncio.Event()
        self._mark = ""
        self._opened: AbstractChannel | None = None
        self._channel: aiormq.Channel | None = None
        self._tag = ""
        self._refused = False

    @property
    def is_followed(self) -> bool:
        """Whether the broker brings what is cancelled from now on, as far as it can here.

        A stream that is deleted ends the consumer and leaves its channel open.
        """
        if self._channel is None or self._channel.is_closed:
            return self._refused
        return self._tag in self._channel.consumers

    def has(self, message_id: str | None) -> bool:
        """Whether a message with this id is not to be posted."""
        return self._until.get(message_id or "", 0) > self._now() * 1000

    async def follow(self, connection: AbstractConnection) -> None:
        """Read what was cancelled up to now, and go on reading as long as the connection lives.

        Where the broker does not allow it, or knows no streams, the relay works without it, and a
        warning is logged.

        Raises:
            Unavailable: the broker does not deliver what the stream holds, or has closed the
                connection because it knows no streams.
        """
        if self._refused:
            return
        if self._opened is not None and not self._opened.is_closed:
            await self._opened.close()
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        self._opened = channel
        await channel.set_qos(prefetch_count=_AT_ONCE)
        # When this entry comes back, everything that was written before it has been read.
        self._mark = f"mark-{uuid.uuid4()}"
        self._read.clear()
        try:
            stream = await _stream(channel, self._topology)
            held = stream.declaration_result.message_count or 0
            if self._next != "first" and held < self._next:
                self._next = "first"  # the stream lost its beginning, or was made again
            await _write(channel, self._topology, self._mark, until=0)
            arguments: dict[str, Any] = {"x-stream-offset": self._next}
            self._tag = await stream.consume(self._take, arguments=arguments)
        except (ChannelAccessRefused, ChannelPreconditionFailed, ConnectionNotImplemented) as error:
            LOG.warning("messages can't be cancelled here: %s", error)
            self._refused = True
            if connection.is_closed:
                raise Unavailable(f"the broker has no streams: {error}") from error
            return
        self._channel = cast(aiormq.Channel, await channel.get_underlay_channel())
        await self._wait(channel)

    async def _wait(self, channel: AbstractChannel) -> None:
        """Wait for our mark, as long as the stream delivers entries."""
        while not self._read.is_set():
            before = self._next
            try:
                async with asyncio.timeout(_TIMEOUT):
                    await self._read.wait()
            except TimeoutError:
                if self._next == before:
                    self._next = "first"
                    await channel.close()
                    raise Unavailable(f"{self._topology.cancelled} brings nothing") from None

    async def _take(self, entry: AbstractIncomingMessage) -> None:
        self._next = int(str(entry.headers["x-stream-offset"])) + 1
        until, message_id = entry.headers.get(UNTIL), entry.message_id or ""
        if isinstance(until, int) and until > self._now() * 1000:
            self._until[message_id] = until
            if len(self._until) % _TIDIED == 0:
                self._until = {one: end for one, end in self._until.items() if self.has(one)}
        if message_id == self._mark:
            self._read.set()
        await entry.ack()


async def _stream(channel: AbstractChannel, topology: Topology) -> AbstractQueue:
    return await channel.declare_queue(topology.cancelled, durable=True, arguments=_ARGUMENTS)


async def _write(channel: AbstractChannel, topology: Topology, message_id: str, until: int) -> None:
    entry = aio_pika.Message(
        b"",
        message_id=message_id,
        headers={UNTIL: until},
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    await channel.default_exchange.publish(
        entry, topology.cancelled, mandatory=True, timeout=_TIMEOUT
    )
