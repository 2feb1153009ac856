"""What waits moves to another topology: nothing is lost, and nothing comes early."""

import asyncio
import os
import sys
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection as Connection

from tests.rabbitmq.conftest import Host
from tests.rabbitmq.traffic import collecting
from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.migrate import migrate
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.topology import Anchor, Topology

pytestmark = pytest.mark.anyio


async def properties(connection: Connection, topology: Topology) -> set[tuple[Any, ...]]:
    """Look at a message of each level; it stays there."""
    async with connection.channel() as channel:
        levels = [await channel.get_queue(one.name, ensure=False) for one in topology.queues]
        found = [one for queue in levels if (one := await queue.get(fail=False))]
        for one in found:
            await one.nack()
    return {(one.correlation_id, one.reply_to, one.user_id) for one in found}


@pytest.mark.parametrize("anchor", Anchor)
async def test_what_waits_moves_and_keeps_its_time_and_destination(
    connection: Connection, anchor: Anchor
) -> None:
    to = {"zaqar": "mine", "mail.of": "theirs"}
    was = {"zaqar": "old", "mail.of": "older"}
    old = Topology(8, unit_ms=20, anchor=anchor, destinations=was)
    new = Topology(12, unit_ms=10, prefix="next", anchor=anchor, destinations=to)
    await amqp.declare(connection, old)
    with pytest.raises(Unavailable, match="is the topology applied"):
        await migrate(connection, old, new)
    with pytest.raises(Invalid, match="another prefix"):
        await migrate(connection, old, old)
    await amqp.declare(connection, new)
    async with Publisher(connection, old) as publisher:
        for number in range(20):
            message = aio_pika.Message(
                b"", message_id=f"m{number}", correlation_id="c", reply_to="r", user_id="guest"
            )
            destination = list(to)[number % 2]
            await publisher.publish(message, delay=5, destination=destination)
    assert await properties(connection, old) == {("c", "r", "guest")}
    async with connection.channel() as channel:  # nobody said when this one is due
        ingest = await channel.get_exchange(old.ingest, ensure=False)
        await ingest.publish(aio_pika.Message(b"?"), old.routing_key(5))
    done = await migrate(connection, old, new, quiet=0.2)
    assert (done.moved, done.left) == (20, 1)
    assert sum((await amqp.waiting(connection, new)).values()) == 20
    # Who migrates need not be who has published, and the broker takes no other's name.
    assert await properties(connection, new) == {("c", "r", None)}
    async with (
        collecting(connection, "mine") as mine,
        collecting(connection, "theirs") as theirs,
    ):
        await mine.wait_for([f"m{number}" for number in range(0, 20, 2)], seconds=30)
        await theirs.wait_for([f"m{number}" for number in range(1, 20, 2)], seconds=30)
    for collector in (mine, theirs):
        assert all(one.late_ms >= 0 for (one,) in collector.arrivals.values())


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="30 s: tests/run --all")
async def test_a_migration_that_is_killed_goes_on_where_it_was(
    host: Host, connection: Connection
) -> None:
    old, new = Topology(8, unit_ms=100), Topology(10, unit_ms=50, prefix="next")
    delays = [15 + number % 10 for number in range(1_000)]
    words = ("--bits", "8", "--unit-ms", "100", "--to-prefix", "next", "--to-bits", "10")
    await amqp.declare(connection, old)
    await amqp.declare(connection, new)
    async with Publisher(connection, old) as publisher:
        for number, delay in enumerate(delays):
            message = aio_pika.Message(b"", message_id=f"m{number}")
            await publisher.publish(message, delay=delay)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "zaqar_lite.cli", "delay", "migrate"),
        *(*words, "--to-unit-ms", "50", "--amqp-url", host.amqp_url),
    )
    while sum((await amqp.waiting(connection, new)).values()) < 100:
        assert process.returncode is None
        await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    assert 100 <= sum((await amqp.waiting(connection, new)).values()) < 1_000
    rest = await migrate(connection, old, new)
    assert 0 < rest.moved < 1_000
    async with (
        collecting(connection, "delay.zaqar") as before,
        collecting(connection, "next.zaqar") as after,
    ):
        async with asyncio.timeout(60):
            while len(after.arrivals | before.arrivals) < 1_000:  # noqa: ASYNC110 - either
                await asyncio.sleep(0.1)
    arrivals = [one for all_of in (before, after) for one in all_of.arrivals.values()]
    # Twice only what was published and not acknowledged when it was killed.
    assert sum(map(len, arrivals)) - 1_000 <= 64
    assert min(one.late_ms for several in arrivals for one in several) >= 0
