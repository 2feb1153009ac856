"""Topologies carried to a real broker, by AMQP, by management API and by definitions."""

import json
from urllib.parse import quote

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection as Connection

from tests.rabbitmq.conftest import Host
from tests.waiting import until
from zaqar_lite.domain.errors import Conflict, Forbidden, NotFound, Unavailable
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.drift import Kind
from zaqar_lite.rabbitmq.exports import definitions
from zaqar_lite.rabbitmq.management import Management
from zaqar_lite.rabbitmq.topology import Anchor, QueueType, Topology, Unroutable

pytestmark = pytest.mark.anyio

TOPOLOGIES = [
    Topology(4),
    Topology(8, queue_type=QueueType.CLASSIC, unit_ms=20, prefix="a.b"),
    Topology(5, anchor=Anchor.LEFT, unroutable=Unroutable.RETURN, destinations={"x.y": "q/1"}),
    Topology(5, draining_bits=4, destinations={"": "bare", "zaqar": "z"}),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.prefix + str(t.bits))
@pytest.mark.parametrize("by", ["amqp", "management", "definitions"])
async def test_what_was_applied_verifies_and_applying_again_changes_nothing(
    host: Host, connection: Connection, topology: Topology, by: str
) -> None:
    with host.management() as management:
        for _ in range(2):
            if by == "amqp":
                await amqp.declare(connection, topology)
            elif by == "management":
                management.apply(topology)
            else:
                path = f"definitions/{quote(host.name, safe='')}"
                host.put(path, json.loads(definitions(topology)), method="POST")
        assert management.verify(topology) == []
        assert management.apply(topology, prune=True) == []


async def test_removal_leaves_nothing_and_can_be_repeated(
    host: Host, connection: Connection
) -> None:
    topology = Topology(4)
    await amqp.declare(connection, topology)
    await amqp.remove(connection, topology)
    await amqp.remove(connection, topology)
    with host.management() as management:
        assert {each.kind for each in management.verify(topology)} == {Kind.MISSING}
        assert management.apply(topology, dry_run=True)[0].subject == "exchange delay.unroutable"


async def test_messages_keep_a_topology_from_being_removed(
    host: Host, connection: Connection
) -> None:
    topology = Topology(4)
    await amqp.declare(connection, topology)
    async with connection.channel() as channel:
        exchange = await channel.get_exchange(topology.ingest, ensure=False)
        await exchange.publish(aio_pika.Message(b"1"), topology.routing_key(15))
        await exchange.publish(aio_pika.Message(b"no binding wants it"), "zaqar.1.1")
    with pytest.raises(Conflict, match=r"delay\.8: 1"):
        await amqp.remove(connection, topology)
    with host.management() as management:

        def drift() -> list[Kind]:
            return [each.kind for each in management.verify(topology) if each.is_drift]

        # The broker's own lists are seconds behind.
        assert await until(drift, seconds=60) == [Kind.PARKED]
    await amqp.remove(connection, topology, force=True)


async def test_verify_sees_what_would_break_delays(host: Host, connection: Connection) -> None:
    topology = Topology(4)
    vhost = quote(host.name, safe="")
    with host.management() as management:
        management.apply(topology)
        short = {"pattern": r"^delay\.\d", "definition": {"message-ttl": 5}, "apply-to": "queues"}
        small = {"pattern": r"^delay\.4$", "definition": {"max-length": 5}, "apply-to": "queues"}
        host.put(f"policies/{vhost}/short", short)
        host.put(f"operator-policies/{vhost}/small", small)
        async with connection.channel() as channel:
            level = await channel.get_queue("delay.2", ensure=False)
            await level.unbind("delay.4.done", "#.1.*")
            await level.bind("amq.direct", "in")
            await level.bind("delay.8.done", "#")
            elsewhere = await channel.declare_queue("elsewhere", durable=True)
            await elsewhere.bind(topology.end, "mail.#")  # somebody else's destination: no drift
            await elsewhere.bind(topology.ingest, "#")
            await channel.declare_queue("delay.16", durable=True)

            async def ignore(_: aio_pika.abc.AbstractIncomingMessage) -> None: ...

            await level.consume(ignore)
            findings = await until(
                lambda: management.verify(topology),
                lambda found: any(each.kind is Kind.CONSUMER for each in found),
            )
        by_kind: dict[Kind, set[str]] = {}
        for each in findings:
            by_kind.setdefault(each.kind, set()).add(each.subject)
        assert by_kind == {
            Kind.MISSING: {"binding delay.4.done -> delay.2 '#.1.*'"},
            Kind.EXTRA: {
                "binding amq.direct -> delay.2 'in'",
                "binding delay.8.done -> delay.2 '#'",
                "binding delay.ingest -> elsewhere '#'",
                "queue delay.16",
            },
            Kind.POLICY: {"queue delay.1", "queue delay.2", "queue delay.4", "queue delay.8"},
            Kind.CONSUMER: {"queue delay.2"},
        }
        management.apply(topology, prune=True, settle=0)
        left = {each.kind for each in management.verify(topology)}
        assert left <= {Kind.POLICY, Kind.CONSUMER}


async def test_what_cannot_be_changed_is_said_and_nothing_is_touched(
    host: Host, connection: Connection
) -> None:
    with host.management() as management:
        management.apply(Topology(3))
        wanted = Topology(4, unit_ms=500)
        with pytest.raises(Conflict, match="x-message-ttl"):
            management.apply(wanted)
        assert "exchange delay.8.done" in {f.subject for f in management.verify(wanted)}
    with pytest.raises(Conflict, match="another prefix"):
        await amqp.declare(connection, wanted)


async def test_no_topology_is_bound_into_a_larger_one_or_taken_out_of_it(
    host: Host, connection: Connection
) -> None:
    """Its patterns match keys of more digits as well, and both end in the same queues."""
    with host.management() as management:
        management.apply(Topology(6))
        for few in (Topology(4), Topology(5)):
            refused = pytest.raises(Conflict, match=f"more than {few.bits} bits: give its --max")
            with refused:
                management.apply(few)
            with refused:
                await amqp.declare(connection, few)
            with refused:
                await amqp.remove(connection, few, force=True)
        assert [f for f in management.verify(Topology(6)) if f.is_drift] == []


async def test_a_queue_with_messages_is_not_pruned(host: Host, connection: Connection) -> None:
    with host.management() as management:
        management.apply(Topology(5))
        async with connection.channel() as channel:
            exchange = await channel.get_exchange("delay.ingest", ensure=False)
            await exchange.publish(aio_pika.Message(b"1"), Topology(5).routing_key(31))
            assert await until(host.messages, seconds=60) == {"delay.16": 1}
            with pytest.raises(Conflict, match=r"still wait in delay\.16"):
                management.apply(Topology(4), prune=True, settle=0)
            await (await channel.get_queue("delay.16", ensure=False)).purge()

        def pruned() -> bool:
            try:
                management.apply(Topology(4), prune=True, settle=0)
            except Conflict:  # the broker's counts are behind
                return False
            return True

        await until(pruned, seconds=60)
        assert [f for f in management.verify(Topology(4)) if f.is_drift] == []


async def test_whoever_is_not_there_or_not_allowed_is_said(host: Host) -> None:
    with pytest.raises(Unavailable, match="no connection"):
        async with amqp.connected("amqp://guest:secret@127.0.0.1:1/"):
            pass
    with Management("http://127.0.0.1:1") as management, pytest.raises(Unavailable):
        management.verify(Topology(1))
    none = f"{host.server.url.rpartition('/')[0]}/none"
    with pytest.raises(Forbidden, match="no such virtual host"):
        async with amqp.connected(none):
            pass
    with (
        Management(host.management_url, vhost="none") as management,
        pytest.raises(NotFound, match="no virtual host 'none'"),
    ):
        management.verify(Topology(1))
    stranger = host.management_url.replace("guest:guest", "nobody:no")
    with (
        Management(stranger, vhost=host.name) as management,
        pytest.raises(Forbidden, match="refuses the user or the password"),
    ):
        management.verify(Topology(1))
