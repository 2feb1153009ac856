"""The relay between a real broker and a real server; faults come from a proxy between them."""

import asyncio
import itertools
import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection as Connection
from aio_pika.abc import AbstractIncomingMessage
from pamqp import decode

from tests.client.faulty_server import FaultyServer
from tests.conftest import StartServer
from tests.proxy import Fault, Proxy
from tests.rabbitmq.conftest import Host
from tests.rabbitmq.test_commands import delay
from tests.rabbitmq.traffic import arrive
from tests.server import ServerProcess
from tests.services import RabbitServer, start_rabbit
from tests.waiting import until
from zaqar_lite.client import (
    AsyncClient,
    KeyAuth,
    Message,
    QueueNotFound,
    SignedAuth,
    Unauthenticated,
)
from zaqar_lite.domain.errors import Forbidden, Unavailable
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.broker_commands import sharing
from zaqar_lite.rabbitmq.metrics import RelayMetrics, served
from zaqar_lite.rabbitmq.publisher import Publisher
from zaqar_lite.rabbitmq.relay import Relay, RelayOptions
from zaqar_lite.rabbitmq.topology import QueueType, Topology

pytestmark = pytest.mark.anyio

TOPOLOGY = Topology(4, unit_ms=20)
QUICK = RelayOptions(base=0.01, cap=0.05, faults=3, check=0.2, renew=2, drain=10)


@asynccontextmanager
async def relaying(
    broker: str, zaqar: str, *, options: RelayOptions = QUICK, topology: Topology = TOPOLOGY
) -> AsyncIterator[tuple[Relay, asyncio.Event, asyncio.Task[None]]]:
    """Run a relay; it is drained at the end of the block."""
    stop = asyncio.Event()
    async with AsyncClient(zaqar) as pool:
        relay = Relay(broker, topology, sharing(pool), options=options)
        task = asyncio.create_task(relay.run(stop))
        try:
            yield relay, stop, task
        finally:
            stop.set()
            await asyncio.wait_for(task, 30)


async def stored(zaqar: str, queue: str, project: str = "default") -> Counter[Any]:
    """Count the bodies that a Zaqar queue holds; objects as JSON."""
    async with AsyncClient(zaqar, project=project) as client:
        try:
            bodies = [message.body async for message in client.list_messages(queue)]
        except QueueNotFound:
            return Counter()
        return Counter(
            json.dumps(body, separators=(",", ":")) if isinstance(body, dict) else body
            for body in bodies
        )


async def listed(client: AsyncClient, queue: str) -> list[Message]:
    return [message async for message in client.list_messages(queue, details=True)]


async def until_stored(zaqar: str, queue: str, count: int) -> Counter[Any]:
    return await until(lambda: stored(zaqar, queue), lambda found: len(found) >= count)


async def publish_many(
    connection: Connection, queue: str, bodies: Mapping[str, object], **more: Any
) -> None:
    async with Publisher(connection, TOPOLOGY) as publisher:
        for message_id, body in bodies.items():
            await publisher.publish_to_zaqar(queue, body, message_id=message_id, delay=0.04, **more)


def fresh(count: int) -> tuple[str, dict[str, object]]:
    """Return a new queue's name, which has a dot, and bodies by message id."""
    name = f"q.{uuid.uuid4().hex}"
    return name, {f"{name}-{number}": number for number in range(count)}


async def test_half_a_request_for_the_metrics_does_not_keep_a_relay_from_ending() -> None:
    async with served(RelayMetrics(), 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        began = asyncio.get_running_loop().time()
    writer.close()
    assert asyncio.get_running_loop().time() - began < 8


async def test_what_is_due_is_stored_with_its_ttl_and_no_delay(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    queue, _ = fresh(0)
    async with AsyncClient(zaqar.url, project="p-1") as client:
        await client.create_queue(queue, {"_default_message_delay": 300})
        await amqp.declare(connection, TOPOLOGY)
        async with relaying(host.amqp_url, zaqar.url):
            await publish_many(
                connection,
                queue,
                {"one": {"a": [1, "é", None]}},
                ttl=4321,
                project="p-1",
                headers={"trace": "t-1"},
            )
            (message,) = await until(lambda: listed(client, queue), lambda found: len(found) == 1)
    assert (message.body, message.ttl) == ({"a": [1, "é", None]}, 4321)
    assert message.headers == {"trace": "t-1"}


async def test_an_answer_that_asks_for_days_holds_the_relay_up_no_longer_than_a_message(
    host: Host, connection: Connection
) -> None:
    queue, bodies = fresh(2)
    await amqp.declare(connection, TOPOLOGY)
    with FaultyServer() as server:
        server.script.append((503, {"Retry-After": "864000"}))
        async with relaying(host.amqp_url, server.url, options=replace(QUICK, hold=1)):
            await publish_many(connection, queue, bodies)
            await until(lambda: sorted(map(str, server.stored)) == ["0", "1"])


async def test_refusals_and_lost_answers_store_everything_once(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    chosen = random.Random(3)
    faults: list[Fault | int] = [Fault.NONE, Fault.NONE, 503, 429, Fault.LOSE]
    queue, bodies = fresh(100)
    with Proxy(zaqar.url, lambda *_: chosen.choice(faults)) as proxy:
        await amqp.declare(connection, TOPOLOGY)
        await publish_many(connection, queue, bodies)
        # Two relays side by side.
        async with (
            relaying(host.amqp_url, proxy.url) as (one, *_),
            relaying(host.amqp_url, proxy.url) as (other, *_),
        ):
            assert await until_stored(zaqar.url, queue, 100) == Counter(range(100))
            await until(lambda: not one.metrics.in_flight and not other.metrics.in_flight)
        assert set(proxy.faults) == set(faults)
        posts = one.metrics.posts + other.metrics.posts
        assert posts["201"] == 100
        assert posts["503"] == proxy.faults.count(503)
        assert posts["429"] == proxy.faults.count(429)
        assert posts["none"] == proxy.faults.count(Fault.LOSE)
        assert one.metrics.posts["201"] > 0
        page, stored_by_one = one.metrics.render(), one.metrics.posts["201"]
        assert f'relay_posts_total{{code="201"}} {stored_by_one}' in page
        assert f"relay_lateness_seconds_count {stored_by_one}" in page
        assert other.metrics.posts["201"] > 0
        assert await amqp.waiting(connection, TOPOLOGY) == {}
    assert await stored(zaqar.url, queue) == Counter(range(100))


async def test_what_can_never_be_posted_is_parked_with_the_reason(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    queue, bodies = fresh(3)
    wrong: dict[str, tuple[bytes, dict[str, Any], str]] = {
        "no queue": (b"1", {}, "queue's name"),
        "bad project": (b"1", {"zaqar-queue": queue, "zaqar-project": "a\nb: c"}, "a project is"),
        "no json": (b"{", {"zaqar-queue": queue}, "not JSON"),
        "breaks out": (b'1,"ttl":60', {"zaqar-queue": queue}, "not JSON"),
        "bad ttl": (b"1", {"zaqar-queue": queue, "zaqar-ttl": "soon"}, "whole number"),
        "long ttl": (b"1", {"zaqar-queue": queue, "zaqar-ttl": "9" * 5000}, "whole number"),
        "short ttl": (b"1", {"zaqar-queue": queue, "zaqar-ttl": 5}, "400"),
    }
    await amqp.declare(connection, TOPOLOGY)
    async with Publisher(connection, TOPOLOGY) as publisher:
        for message_id, (body, headers, _) in wrong.items():
            message = aio_pika.Message(body, message_id=message_id, headers=headers, type="t")
            await publisher.publish(message)
    await publish_many(connection, queue, bodies)
    async with relaying(host.amqp_url, zaqar.url) as (relay, *_):
        assert await until_stored(zaqar.url, queue, 3) == Counter(range(3))
        async with connection.channel() as channel:
            failed = await channel.get_queue(TOPOLOGY.failed, ensure=False)
            parked = [await arrive(failed) for _ in wrong]
    assert relay.metrics.parked == {"400": len(wrong)}
    for found in parked:
        body, headers, reason = wrong[str(found.message_id)]
        assert (found.body, found.type) == (body, "t")
        assert found.headers["relay-status"] == "400"
        assert reason in str(found.headers["relay-reason"])
        assert headers.items() <= found.headers.items()


async def test_a_message_that_is_not_as_the_protocol_says_stops_no_other(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    """What the library can't read would end each connection on which it comes."""
    queue, bodies = fresh(2)
    await amqp.declare(connection, TOPOLOGY)
    place = f"exchanges/{quote(host.name, safe='')}/amq.default/publish"
    properties = {"message_id": "a", "timestamp": 1_700_000_000_000_000}  # in microseconds
    for body in ("7", "8"):  # under one id: the second is refused with 409
        message: dict[str, Any] = {
            "properties": {**properties, "headers": {"zaqar-queue": queue}},
            "routing_key": TOPOLOGY.targets["zaqar"],
            "payload": body,
            "payload_encoding": "string",
        }
        host.put(place, message, method="POST")
    await publish_many(connection, queue, bodies)
    async with relaying(host.amqp_url, zaqar.url) as (relay, *_):
        found = await until_stored(zaqar.url, queue, 3)
        parked = await parked_by_id(connection, 1)
    assert found - Counter([7, 8]) == Counter(range(2))
    assert (relay.metrics.connections, relay.metrics.parked) == (1, {"409": 1})
    assert parked["a"].body.decode() not in {str(body) for body in found}
    assert decode.by_type(b"\2\xff!", "shortstr") == (3, "\\xff!")


async def parked_by_id(connection: Connection, count: int) -> dict[str, AbstractIncomingMessage]:
    """Wait for so many parked messages; return them by message id."""
    async with connection.channel() as channel:
        failed = await channel.get_queue(TOPOLOGY.failed, ensure=False)
        found = [await arrive(failed) for _ in range(count)]
    return {str(message.message_id): message for message in found}


async def test_what_is_forbidden_or_not_there_is_parked_and_the_rest_goes_on(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    """A gateway answers 403 or 404 to some posts: for good, as the client reads it."""
    queue, bodies = fresh(9)
    answers: Iterator[Fault | int] = itertools.cycle([403, Fault.NONE, 404])
    with Proxy(zaqar.url, lambda *_: next(answers)) as proxy:
        await amqp.declare(connection, TOPOLOGY)
        await publish_many(connection, queue, bodies)
        async with relaying(host.amqp_url, proxy.url) as (relay, *_):
            parked = await parked_by_id(connection, 6)
            left = await until_stored(zaqar.url, queue, 3)
        assert relay.metrics.parked == {"403": 3, "404": 3}
        told = Counter(str(message.headers["relay-status"]) for message in parked.values())
        assert told == relay.metrics.parked
        # Nothing is lost and nothing doubled: each is here or there.
        moved = Counter(json.loads(message.body) for message in parked.values())
        assert left + moved == Counter(range(9))
        assert await amqp.waiting(connection, TOPOLOGY) == {}


async def test_a_relay_with_a_signed_permission_posts_what_it_covers(
    host: Host, connection: Connection, server_process: StartServer
) -> None:
    server = server_process("memory://", env={"ZAQAR_LITE_SIGNED_URL_SECRET_KEY": "s" * 32})
    async with AsyncClient(server.url) as owner:
        signed = await owner.share("mine", methods=["POST"])
    client_for = sharing(AsyncClient(server.url), auth=SignedAuth(signed))
    await amqp.declare(connection, TOPOLOGY)
    await publish_many(connection, "mine", {"covered": 1})
    await publish_many(connection, "other", {"not covered": 2})
    await publish_many(connection, "mine", {"of another": 3}, project="p-2")
    stop = asyncio.Event()
    task = asyncio.create_task(Relay(host.amqp_url, TOPOLOGY, client_for, options=QUICK).run(stop))
    parked = await parked_by_id(connection, 2)
    assert await until_stored(server.url, "mine", 1) == Counter([1])
    stop.set()
    await asyncio.wait_for(task, 30)
    await client_for("default").close()
    assert {name: m.headers["relay-status"] for name, m in parked.items()} == {
        "not covered": "404",
        "of another": "403",
    }
    over = replace(signed, expires="2020-01-01T00:00:00")
    with pytest.raises(Unauthenticated, match="expired"):  # 401: held, and not parked
        sharing(AsyncClient(server.url), auth=SignedAuth(over))("default")


@pytest.mark.parametrize("is_operator", [False, True], ids=["of a project", "an operator's"])
async def test_a_relay_with_a_key_posts_to_the_projects_of_the_key(
    host: Host, connection: Connection, tmp_path: Path, is_operator: bool
) -> None:
    """An operator's belongs to none, so `default` is the project of that name."""
    file = tmp_path / "admin.key"
    options = ("--auth", "keys", "--admin-key-file", str(file))
    with ServerProcess("memory://", *options).start(ready=401) as server:
        admin = file.read_text().strip()
        async with AsyncClient(server.url, key=admin) as operator:
            made = await operator.create_key(grants=["*:*"], project="acme")
        auth = KeyAuth(admin if is_operator else str(made.key))
        client_for = sharing(AsyncClient(server.url, auth=auth), auth)
        await amqp.declare(connection, TOPOLOGY)
        await publish_many(connection, "orders", {"of no project": 1})
        await publish_many(connection, "orders", {"of the same": 2}, project="acme")
        await publish_many(connection, "orders", {"of another": 3}, project="other")
        stop = asyncio.Event()
        relay = Relay(host.amqp_url, TOPOLOGY, client_for, options=QUICK)
        task = asyncio.create_task(relay.run(stop))
        parked = {} if is_operator else await parked_by_id(connection, 1)
        await until(lambda: relay.metrics.posts["201"] == 3 - len(parked))
        stop.set()
        await asyncio.wait_for(task, 30)
        found = {}
        for project in ("default", "acme", "other"):
            async with AsyncClient(server.url, key=admin, project=project) as operator:
                found[project] = {one.body for one in await listed(operator, "orders")}
    own = {"default": {1}, "acme": {2}, "other": {3}}
    assert found == (own if is_operator else {"default": set(), "acme": {1, 2}, "other": set()})
    refused = {name: message.headers["relay-status"] for name, message in parked.items()}
    assert refused == ({} if is_operator else {"of another": "403"})


async def test_a_relay_that_may_not_consume_ends_at_its_start_and_waits_later(
    host: Host, connection: Connection, zaqar: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    user = f"u{uuid.uuid4().hex[:8]}"
    none, strange = host.limited(user), f"{host.server.url.rpartition('/')[0]}/none"
    await amqp.declare(connection, TOPOLOGY)
    async with AsyncClient(zaqar.url) as pool:
        for url, says in ((none, f"refused for user '{user}'"), (strange, "no such virtual host")):
            with pytest.raises(Forbidden, match=f"can't consume delay.zaqar: .*{says}"):
                await Relay(url, TOPOLOGY, sharing(pool)).run(asyncio.Event())
    rights = {"configure": ".*", "write": ".*"}
    async with relaying(host.limited(user, read=".*", **rights), zaqar.url):
        queue, bodies = fresh(1)
        await publish_many(connection, queue, bodies)
        await until_stored(zaqar.url, queue, 1)
        host.limited(user, **rights)
        await until(lambda: "nothing to consume, trying again" in caplog.text)
        host.limited(user, read=".*", **rights)
        await publish_many(connection, queue, {"later": "later"})
        await until_stored(zaqar.url, queue, 2)


def test_the_relay_command_ends_where_its_password_is_wrong(
    host: Host, zaqar: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = host.amqp_url.replace("guest:guest", "guest:hush")
    assert delay("relay", "--amqp-url", wrong, "--zaqar-url", zaqar.url) == 1
    said = capsys.readouterr().err
    assert "refuses the user or the password (--amqp-url)" in said
    assert "hush" not in said


def test_the_relay_command_refuses_an_address_where_no_zaqar_is(host: Host) -> None:
    """Parking all that is due because of a typing error would be a pity."""
    with Proxy("", lambda *_: 404) as other:
        assert delay("relay", "--amqp-url", host.amqp_url, "--zaqar-url", other.url) == 2


async def test_the_end_of_a_relay_finishes_posts_and_keeps_the_rest(
    host: Host, connection: Connection, zaqar: ServerProcess
) -> None:
    queue, bodies = fresh(40)
    with Proxy(zaqar.url, lambda *_: Fault.HOLD) as proxy:
        await amqp.declare(connection, TOPOLOGY)
        await publish_many(connection, queue, bodies)
        options = RelayOptions(prefetch=8, base=0.01, cap=0.05)
        async with relaying(host.amqp_url, proxy.url, options=options) as (relay, stop, task):
            await until(lambda: len(proxy.seen) == 8)
            stop.set()
            _, pending = await asyncio.wait([task], timeout=0.3)
            assert pending  # it waits for the posts under way
            proxy.release.set()
            await asyncio.wait_for(task, 10)
            assert relay.metrics.posts == {"201": 8}
        assert len(await stored(zaqar.url, queue)) == 8
        left = await amqp.waiting(connection, TOPOLOGY)
        assert left == {"delay.zaqar": 32}
        async with relaying(host.amqp_url, zaqar.url):
            assert await until_stored(zaqar.url, queue, 40) == Counter(range(40))


async def test_a_server_that_always_fails_does_not_hold_a_message_for_ever(
    host: Host, connection: Connection
) -> None:
    """A 500 may be the message's own fault: after a few it is parked, and the others go on."""
    await amqp.declare(connection, TOPOLOGY)
    await publish_many(connection, "q", {"poison": 1})
    with Proxy("", lambda *_: 500) as failing:
        async with relaying(host.amqp_url, failing.url):
            parked = await parked_by_id(connection, 1)
    assert parked["poison"].headers["relay-status"] == "500"


@pytest.mark.parametrize("kind", QueueType)
async def test_a_queue_deleted_under_messages_in_hand_stops_neither_them_nor_the_relay(
    host: Host, connection: Connection, zaqar: ServerProcess, kind: QueueType
) -> None:
    """What the relay holds is posted; what lay in the queue is gone with it, as whoever deletes
    a queue wants; what is published after the queue is back is posted too.
    """
    queue, bodies = fresh(8)
    later = {f"{queue}-later": "later"}
    topology = replace(TOPOLOGY, queue_type=kind)
    with Proxy(zaqar.url, lambda *_: Fault.HOLD) as proxy:
        async with connection.channel() as channel:
            await amqp.declare(connection, topology)
            await publish_many(connection, queue, bodies)
            async with relaying(host.amqp_url, proxy.url, topology=topology) as (relay, *_):
                await until(lambda: len(proxy.seen) == 8)
                await channel.queue_delete("delay.zaqar")
                await amqp.declare(connection, topology)
                await asyncio.sleep(2 * QUICK.check)
                proxy.release.set()
                assert await until_stored(zaqar.url, queue, 8) == Counter(range(8))
                await publish_many(connection, queue, later)
                found = await until_stored(zaqar.url, queue, 9)
                assert found == Counter([*range(8), "later"])
                await until(lambda: not relay.metrics.in_flight)


@pytest.fixture
def own_broker() -> Iterator[RabbitServer]:
    """A broker that may be killed."""
    with start_rabbit(management=False) as broker:
        yield broker


async def test_a_killed_broker_loses_nothing_and_the_relay_stores_nothing_twice(
    own_broker: RabbitServer, zaqar: ServerProcess
) -> None:
    """kill -9 in mid-delay, with quorum queues, while 16 tasks publish and a relay posts."""
    topology = Topology(6, unit_ms=100)
    chosen = random.Random(4)
    queue = f"q{uuid.uuid4().hex}"
    confirmed: set[str] = set()
    async with amqp.connected(own_broker.url) as connection:
        await amqp.declare(connection, topology)

        async def publish(publisher: Publisher, worker: int) -> None:
            for number in range(10_000):
                name = f"{worker}-{number}"
                try:
                    await publisher.publish_to_zaqar(
                        queue, name, message_id=name, delay=chosen.randrange(64) / 10
                    )
                except Unavailable:
                    return
                confirmed.add(name)

        async with relaying(own_broker.url, zaqar.url, topology=topology) as (relay, *_):
            async with Publisher(connection, topology) as publisher, asyncio.TaskGroup() as group:
                for worker in range(16):
                    group.create_task(publish(publisher, worker))
                # Killed earlier, RabbitMQ 3.10 knows no more of queues that it has just declared.
                await asyncio.sleep(3)
                await until(lambda: relay.metrics.posts["201"])
                await asyncio.to_thread(own_broker.kill)
            before = relay.metrics.posts["201"]
            assert 0 < before < len(confirmed)  # it was in mid-delay
            await asyncio.to_thread(own_broker.restart)
            found = await until(
                lambda: stored(zaqar.url, queue),
                lambda found: confirmed <= found.keys(),
                seconds=60,
            )
            assert relay.metrics.connections >= 2
    assert max(found.values()) == 1
