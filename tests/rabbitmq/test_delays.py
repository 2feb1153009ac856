"""Delays kept by a real broker. The unit is milliseconds, so that years pass in a second."""

import asyncio
import uuid
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection as Connection

from tests.rabbitmq.conftest import Host
from tests.rabbitmq.traffic import arrive, collecting, publish_units
from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.topology import Anchor, QueueType, Topology

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("queue_type", "anchor"),
    [(QueueType.QUORUM, Anchor.RIGHT), (QueueType.CLASSIC, Anchor.LEFT)],
)
async def test_every_delay_of_eight_bits_comes_by_its_own_way_and_never_early(
    connection: Connection, queue_type: QueueType, anchor: Anchor
) -> None:
    topology = Topology(8, unit_ms=20, queue_type=queue_type, anchor=anchor)
    await amqp.declare(connection, topology)
    async with collecting(connection, "delay.zaqar") as collector:
        sent = await publish_units(connection, topology, range(256))
        await collector.wait_for(sent, seconds=30)
    for message_id, units in sent.items():
        (arrival,) = collector.arrivals[message_id]
        assert arrival.queues == [hop.queue for hop in topology.path(units * 20 / 1000)]
        assert arrival.late_ms >= 0
    assert await amqp.waiting(connection, topology) == {}


async def test_a_missing_destination_parks_its_messages_and_blocks_nobody(
    connection: Connection,
) -> None:
    """Sixty are more than the broker's dead-letter window: without the alternate all would stop."""
    topology = Topology(4, unit_ms=50, destinations={"zaqar": "delay.zaqar", "gone": "gone"})
    await amqp.declare(connection, topology)
    async with connection.channel() as channel:
        await channel.queue_delete("gone")
        async with (
            Publisher(connection, topology) as publisher,
            collecting(connection, "delay.zaqar") as zaqar,
            collecting(connection, topology.parking) as parked,
        ):
            for number in range(60):
                await publisher.publish(
                    aio_pika.Message(b"", message_id=f"g{number}"),
                    delay=0.25,
                    destination="gone",
                )
            for number in range(5):
                message = aio_pika.Message(b"", message_id=f"z{number}")
                await publisher.publish(message, delay=0.25)
            await zaqar.wait_for([f"z{number}" for number in range(5)], seconds=10)
            await parked.wait_for([f"g{number}" for number in range(60)], seconds=10)


async def test_a_topology_grows_with_messages_on_their_way(
    host: Host, connection: Connection
) -> None:
    old, new = Topology(4, unit_ms=100), Topology(5, unit_ms=100, draining_bits=4)
    with host.management() as management:
        management.apply(old)
        async with collecting(connection, "delay.zaqar") as collector:
            before = await publish_units(connection, old, range(16))
            await asyncio.to_thread(management.apply, new)
            # Both generations of ingest bindings: wider keys, but the old maximum.
            async with Publisher(connection, new, maximum=1.5) as between:
                with pytest.raises(Invalid, match=r"1\.5 s"):
                    await between.publish(aio_pika.Message(b"", message_id="m"), delay=1.6)
                for count in range(16):
                    message = aio_pika.Message(b"", message_id=f"between-{count}")
                    await between.publish(message, delay=count / 10)
            pruned = await asyncio.to_thread(management.apply, new, prune=True)
            assert len(pruned) == 5
            after = await publish_units(connection, new, range(16, 32))
            every = {*before, *after, *(f"between-{count}" for count in range(16))}
            await collector.wait_for(every, seconds=20)
        assert all(len(each) == 1 for each in collector.arrivals.values())
        assert min(each[0].late_ms for each in collector.arrivals.values()) >= 0
        final = Topology(5, unit_ms=100)  # the old keys are through: unbind them
        await asyncio.to_thread(management.apply, final, prune=True)
        assert [f for f in management.verify(final) if f.is_drift] == []


async def test_a_publisher_needs_its_topology_while_it_publishes(connection: Connection) -> None:
    """A key of 5 digits would be confirmed by 4 levels, and its message come too early."""
    with pytest.raises(Unavailable, match="is the topology applied"):
        await Publisher(connection, Topology(4)).__aenter__()
    await amqp.declare(connection, Topology(4))
    with pytest.raises(Unavailable, match=r"delay\.16\.done.*with 5 bits"):
        await Publisher(connection, Topology(5)).__aenter__()
    async with Publisher(connection, Topology(4)) as publisher:
        await amqp.remove(connection, Topology(4))
        with pytest.raises(Unavailable):
            await publisher.publish(aio_pika.Message(b"", message_id="m"), delay=1)


async def test_a_publisher_needs_no_right_but_to_write_to_the_ingest_exchange(
    host: Host, connection: Connection
) -> None:
    limited = host.limited(f"u{uuid.uuid4().hex[:8]}", write=r"^delay\.ingest$")
    await amqp.declare(connection, Topology(4))
    async with amqp.connected(limited) as own, Publisher(own, Topology(4)) as publisher:
        await publisher.publish(aio_pika.Message(b"", message_id="m"))


async def test_a_publisher_refuses_what_could_not_be_kept_or_zaqar_would_refuse_in_years(
    connection: Connection,
) -> None:
    topology = Topology(4)
    await amqp.declare(connection, topology)
    kept: list[tuple[dict[str, Any], float, str]] = [
        ({"message_id": "m"}, 16, "15 s"),
        ({"message_id": "m"}, 15.2, "15 s"),
        ({"message_id": "m"}, -1, "negative"),
        ({"message_id": "m"}, float("nan"), "finite"),
        ({"message_id": "m"}, float("inf"), "finite"),
        ({}, 1, "message_id"),
        ({"message_id": "m", "expiration": 1}, 1, "expiration"),
    ]
    posted: list[tuple[dict[str, Any], str]] = [
        ({"queue": "a b"}, "queue's name"),
        ({"ttl": 59}, "60"),
        ({"ttl": 1209601}, "1209600"),
        ({"message_id": "x" * 129}, "1..128"),
        ({"body": float("nan")}, "not JSON"),
        ({"body": "x" * 262144}, "262144"),
    ]
    async with Publisher(connection, topology) as publisher:
        for properties, delay, words in kept:
            with pytest.raises(Invalid, match=words):
                await publisher.publish(aio_pika.Message(b"", **properties), delay=delay)
        for arguments, words in posted:
            given = {"queue": "q", "body": 1, "message_id": "m", **arguments}
            with pytest.raises(Invalid, match=words):
                await publisher.publish_to_zaqar(**given)
    assert await amqp.waiting(connection, topology) == {}


async def test_a_second_trip_strips_the_first_and_arrives(connection: Connection) -> None:
    """With the old x-death the broker sees a loop and never delivers."""
    topology = Topology(4, unit_ms=50)
    await amqp.declare(connection, topology)
    async with (
        Publisher(connection, topology) as publisher,
        connection.channel() as channel,
    ):
        queue = await channel.get_queue("delay.zaqar", ensure=False)
        message = aio_pika.Message(b"x", message_id="again", headers={"mine": 1})
        await publisher.publish(message, delay=0.15)
        got = await arrive(queue)
        assert "x-death" in got.headers
        again = aio_pika.Message(got.body, message_id="again", headers=got.headers)
        await publisher.publish(again, delay=0.15)
        second = await arrive(queue)
        deaths = second.headers["x-death"]
        assert isinstance(deaths, list)
        assert len(deaths) == 2
        assert second.headers["mine"] == 1
        assert second.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
