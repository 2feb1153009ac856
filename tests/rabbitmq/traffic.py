"""Messages through a topology on a real broker: published, collected, their ways read back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection as Connection
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

from tests.waiting import until
from zaqar_lite.rabbitmq.messages import DUE
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.topology import Topology


@dataclass
class Arrival:
    """A message that came out."""

    message_id: str
    late_ms: float
    queues: Sequence[str]


@dataclass
class Collector:
    """What came out of a queue so far, by message id; several entries are duplicates."""

    arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, message: AbstractIncomingMessage) -> None:
        assert message.message_id is not None
        late = time.time() * 1000 - int(str(message.headers[DUE]))
        arrival = Arrival(message.message_id, late, way(message))
        self.arrivals.setdefault(message.message_id, []).append(arrival)
        await message.ack()
        self.arrived.set()

    async def wait_for(self, ids: Iterable[str], *, seconds: float) -> None:
        """Wait until all of the messages came; what is missing is the assertion's text."""
        wanted = set(ids)
        try:
            async with asyncio.timeout(seconds):
                while wanted - self.arrivals.keys():
                    self.arrived.clear()
                    await self.arrived.wait()
        except TimeoutError:
            missing = sorted(wanted - self.arrivals.keys())
            raise AssertionError(f"{len(missing)} never came: {missing[:10]}") from None


def way(message: AbstractIncomingMessage) -> list[str]:
    """Return the queues that a message waited in, in order.

    The broker's list is not ordered by time, so the links between exchange and queue are followed.
    """
    deaths: Any = message.headers.get("x-death", [])
    by_exchange = {str(death["exchange"]): str(death["queue"]) for death in deaths}
    exchange = next((name for name in by_exchange if name.endswith(".ingest")), None)
    queues = []
    while exchange in by_exchange:
        queues.append(by_exchange.pop(exchange))
        exchange = f"{queues[-1]}.done"
    assert not by_exchange, f"hops that hang together with nothing: {by_exchange}"
    return queues


@asynccontextmanager
async def collecting(connection: Connection, queue: str) -> AsyncIterator[Collector]:
    """Consume a queue until the block ends."""
    collector = Collector()
    async with connection.channel() as channel:
        await channel.set_qos(prefetch_count=500)
        source = await channel.get_queue(queue, ensure=False)
        await source.consume(collector.take)
        yield collector


async def publish_units(
    connection: Connection, topology: Topology, units: Iterable[int], *, together: int = 128
) -> dict[str, int]:
    """Publish a message for each number of units; return message id -> units."""
    gate = asyncio.Semaphore(together)
    sent: dict[str, int] = {}
    async with Publisher(connection, topology) as publisher:

        async def one(number: int, count: int) -> None:
            async with gate:
                message = aio_pika.Message(b"{}", message_id=f"{number}-{count}")
                await publisher.publish(message, delay=count * topology.unit_ms / 1000)
                sent[f"{number}-{count}"] = count

        async with asyncio.TaskGroup() as group:
            for number, count in enumerate(units):
                group.create_task(one(number, count))
    return sent


async def arrive(queue: AbstractQueue) -> AbstractIncomingMessage:
    """Take the next message out of a queue."""

    async def get() -> AbstractIncomingMessage | None:
        return await queue.get(fail=False)

    message = await until(get)
    assert message is not None
    await message.ack()
    return message
