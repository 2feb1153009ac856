"""A message that waits is cancelled by its id; the relays honour it, whenever they start."""

import asyncio
import time
import uuid

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection as Connection

from tests.proxy import Fault, Proxy
from tests.rabbitmq.conftest import Host
from tests.rabbitmq.test_commands import delay
from tests.rabbitmq.test_relay import TOPOLOGY, relaying, until_stored
from tests.server import ServerProcess
from tests.waiting import until
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.cancellations import Cancellations, cancel
from zaqar_lite.rabbitmq.commands import OK
from zaqar_lite.rabbitmq.publisher import Publisher

pytestmark = pytest.mark.anyio


async def test_what_is_cancelled_is_not_posted_by_relays_of_now_and_later(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    queue = f"q{uuid.uuid4().hex}"
    await amqp.declare(connection, TOPOLOGY)
    async with Publisher(connection, TOPOLOGY) as publisher:
        for number in range(6):
            message_id = f"{queue}-{number}"
            await publisher.publish_to_zaqar(queue, number, message_id=message_id, delay=0.3)
    await cancel(connection, TOPOLOGY, f"{queue}-1")
    # The first relay finds the id in the stream; the second reads its relay's mark over it.
    async with (
        relaying(host.amqp_url, zaqar.url) as (one, *_),
        relaying(host.amqp_url, zaqar.url) as (other, *_),
    ):
        assert sorted(await until_stored(zaqar.url, queue, 5)) == [0, 2, 3, 4, 5]
        await until(lambda: one.metrics.cancelled + other.metrics.cancelled == 1)
        # Both run: each hears of it.
        await cancel(connection, TOPOLOGY, f"{queue}-late")
        heard = (one._cancelled, other._cancelled)
        await until(lambda: all(each.has(f"{queue}-late") for each in heard))
        async with Publisher(connection, TOPOLOGY) as publisher:
            late = f"{queue}-late"
            await publisher.publish_to_zaqar(queue, 6, message_id=late, delay=0.1)
            await publisher.publish_to_zaqar(queue, 7, message_id=f"{queue}-7", delay=0.2)
        assert sorted(await until_stored(zaqar.url, queue, 6)) == [0, 2, 3, 4, 5, 7]
        await until(lambda: one.metrics.cancelled + other.metrics.cancelled == 2)
    assert "relay_cancelled_total" in one.metrics.render()
    assert await amqp.waiting(connection, TOPOLOGY) == {}


async def test_a_stream_that_is_deleted_is_followed_anew(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    queue = f"q{uuid.uuid4().hex}"
    await amqp.declare(connection, TOPOLOGY)
    for number in range(5):
        await cancel(connection, TOPOLOGY, f"early-{number}")
    async with relaying(host.amqp_url, zaqar.url) as (relay, *_):
        await until(lambda: relay._cancelled.has("early-4"))
        async with connection.channel() as channel:
            await channel.queue_delete(TOPOLOGY.cancelled)
        await cancel(connection, TOPOLOGY, f"{queue}-0")  # makes another one
        await until(lambda: relay._cancelled.has(f"{queue}-0"))
        async with Publisher(connection, TOPOLOGY) as publisher:
            for number in range(2):
                message_id = f"{queue}-{number}"
                await publisher.publish_to_zaqar(queue, number, message_id=message_id)
        assert list(await until_stored(zaqar.url, queue, 1)) == [1]
        await until(lambda: relay.metrics.cancelled == 1)


async def test_what_the_relay_holds_is_cancelled_too(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    queue = f"q{uuid.uuid4().hex}"
    busy = [True]
    with Proxy(zaqar.url, lambda *_: 503 if busy[0] else Fault.NONE) as proxy:
        async with (
            relaying(host.amqp_url, proxy.url) as (relay, *_),
        ):
            await amqp.declare(connection, TOPOLOGY)
            async with Publisher(connection, TOPOLOGY) as publisher:
                await publisher.publish_to_zaqar(queue, 0, message_id=queue)
            await until(lambda: relay.metrics.posts["503"] > 0)
            await cancel(connection, TOPOLOGY, queue)
            await until(lambda: relay.metrics.cancelled == 1)
            busy[0] = False
            assert relay.metrics.posts["201"] == 0


async def test_a_relay_that_can_not_have_the_stream_works_without_it(
    host: Host,
    connection: Connection,
    zaqar: ServerProcess,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = f"q{uuid.uuid4().hex}"
    await amqp.declare(connection, TOPOLOGY)
    async with connection.channel() as channel:  # whoever made it did not make a stream
        await channel.declare_queue(TOPOLOGY.cancelled, durable=True)
    async with relaying(host.amqp_url, zaqar.url) as (relay, *_):
        async with Publisher(connection, TOPOLOGY) as publisher:
            await publisher.publish_to_zaqar(queue, 0, message_id=queue)
        assert list(await until_stored(zaqar.url, queue, 1)) == [0]
        await asyncio.sleep(1)  # five looks of the relay at its consumers
        assert relay.metrics.connections == 1
    assert caplog.text.count("messages can't be cancelled here") == 1


async def test_a_relay_reads_all_ids_first_and_forgets_those_that_are_over(host: Host) -> None:
    later = time.time() + 2 * 86_400
    async with amqp.connected(host.amqp_url) as connection:
        await amqp.declare(connection, TOPOLOGY)
        for number in range(600):  # more than it takes at once
            await cancel(connection, TOPOLOGY, f"id-{number}")
        read = Cancellations(TOPOLOGY)
        await read.follow(connection)
        assert [read.has(f"id-{number}") for number in range(601)] == [*[True] * 600, False]
        assert not read.has(None)
        moved = Cancellations(TOPOLOGY, now=lambda: later)
        await moved.follow(connection)
        assert not moved._until
        # A stream goes on where it was left, on another connection too.
        await cancel(connection, TOPOLOGY, "id-600")
    async with amqp.connected(host.amqp_url) as connection:
        assert not read.is_followed
        await read.follow(connection)
        assert all(read.has(f"id-{number}") for number in range(601))
        with pytest.raises(Invalid, match="by its id"):
            await cancel(connection, TOPOLOGY, "")


def test_the_command_cancels(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("cancel", "order-17", "--amqp-url", host.amqp_url)
    assert delay(*words) == 1
    assert "the broker has no topology 'delay': see --prefix" in capsys.readouterr().err
    assert delay("apply", *words[2:]) == delay(*words, "--dry-run") == delay(*words) == OK
    assert capsys.readouterr().out.endswith("would cancel order-17\ncancelled order-17\n")

    async def found() -> bool:
        async with amqp.connected(host.amqp_url) as connection:
            read = Cancellations(TOPOLOGY)
            await read.follow(connection)
            await amqp.remove(connection, TOPOLOGY)  # the stream goes with the topology
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                async with connection.channel() as channel:
                    await channel.get_queue(TOPOLOGY.cancelled, ensure=True)
            return read.has("order-17")

    assert asyncio.run(found())
