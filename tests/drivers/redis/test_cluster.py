"""A cluster: queues in all its slots, letters between them, slots that move, nodes that die."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tests import services
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, texts
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.steps import queues_on_every_node
from tests.services.process import wait_until
from tests.waiting import until_available
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.redis.address import parse
from zaqar_lite.storage.redis.keys import EVERYWHERE, Keys, keys_of, keys_of_project
from zaqar_lite.storage.redis.router import Router, make_router

pytestmark = pytest.mark.anyio


@pytest.fixture
async def queue(redis_cluster: services.RedisCluster, open_queue: Open) -> QueueUnderTest:
    return await open_queue(redis_cluster.url)


async def test_records_and_their_indexes_span_the_nodes(queue: QueueUnderTest) -> None:
    management, project = queue.stores.management, f"project-{uuid4().hex}"
    target = QueueRef(project, "target")
    names = [f"queue-{number:02}" for number in range(12)]
    for name in names:
        metadata = {"_dead_letter_queue": "target"} if name < "queue-06" else {}
        await management.create_queue(QueueRef(project, name), metadata, max_queues=100)
    assert [r.queue.name for r in await management.list_queues(project, limit=100)] == names
    assert await management.dead_letter_sources(target, limit=100) == names[:6]
    await queue.stores.messages.purge(QueueRef(project, "queue-00"), forget=True)
    assert await management.dead_letter_sources(target, limit=100) == names[1:6]
    assert await management.count_queues(project) == 11


@pytest.mark.parametrize("with_note", [False, True], ids=["name", "name and note"])
async def test_a_queue_whose_name_was_lost_by_a_failover_is_listed_again(
    queue: QueueUnderTest, redis_cluster: services.RedisCluster, with_note: bool
) -> None:
    """Also where one node had the names and the note that they change."""
    queue = QueueUnderTest(queue.stores, QueueRef(f"project-{uuid4().hex}", "q"))
    management, project = queue.stores.management, queue.ref.project
    await management.create_queue(queue.ref, {"_dead_letter_queue": "dead"}, max_queues=10)
    for lost in (
        keys_of_project(project).key("names"),
        keys_of(queue.named("dead").ref).key("sources"),
        *([EVERYWHERE.key("intents")] if with_note else []),
    ):
        redis_cluster.nodes[0].cli("-c", "del", lost.decode())
    assert await management.list_queues(project, limit=10) == []
    queue.advance(MINUTE)
    await queue.stores.messages.sweep(1_000)
    assert [one.queue for one in await management.list_queues(project, limit=10)] == [queue.ref]
    assert await management.dead_letter_sources(queue.named("dead").ref, limit=5) == ["q"]


@contextmanager
def moving(cluster: services.RedisCluster, keys: Keys) -> Iterator[services.RedisServer]:
    """Move the keys of a slot to another node, which is given; the slot is its own behind that."""
    nodes, slot = cluster.nodes, str(keys.slot)
    ids = {node.port: node.cli("cluster", "myid").strip() for node in nodes}
    in_slot = ("cluster", "getkeysinslot", slot)
    source = next(node for node in nodes if "zl:" in node.cli(*in_slot, "9"))
    target = next(node for node in nodes if node is not source)
    target.cli("cluster", "setslot", slot, "importing", ids[source.port])
    source.cli("cluster", "setslot", slot, "migrating", ids[target.port])
    found = source.cli(*in_slot, "100").split()
    source.cli("migrate", "127.0.0.1", str(target.port), "", "0", "5000", "keys", *found)
    yield target
    for node in nodes:
        node.cli("cluster", "setslot", slot, "node", ids[target.port])


async def test_a_slot_that_moved_is_found(
    queue: QueueUnderTest, redis_cluster: services.RedisCluster
) -> None:
    """While it moves, a record is found (ASK) and messages must wait (TRYAGAIN); then all is."""
    management = queue.stores.management
    await management.create_queue(queue.ref, {}, max_queues=10_000)
    await queue.post("a")
    with moving(redis_cluster, keys_of(queue.ref)):
        assert await management.get_queue(queue.ref) is not None
        with pytest.raises(Unavailable, match="moving"):
            await queue.bodies()
    await queue.post("b")
    assert await queue.bodies() == ["a", "b"]


async def test_a_node_that_keys_move_to_is_given_the_library(
    queue: QueueUnderTest, redis_cluster: services.RedisCluster
) -> None:
    management, kind = queue.stores.management, queue.ref.name
    await management.put_record(kind, "p", "n", b"x", expected=0, ttl_ms=HOUR)
    with moving(redis_cluster, Keys(f"*kind:{kind}", "kind")) as target:
        target.cli("function", "flush")
        record = await management.get_record(kind, "p", "n")
    assert record is not None


async def test_the_uri_of_one_server_is_refused_by_a_cluster(
    open_queue: Open, redis_cluster: services.RedisCluster
) -> None:
    queue = await open_queue(redis_cluster.nodes[0].url)
    with pytest.raises(Unavailable, match=r"redis\+cluster"):
        await asyncio.gather(*[one.post("a") for one in queues_on_every_node(queue)])


@pytest.mark.parametrize("ask", [lambda router: router.node_of(0), lambda router: router.nodes()])
async def test_a_map_that_another_call_forgot_has_been_read(
    redis_cluster: services.RedisCluster, ask: Callable[[Router], Any]
) -> None:
    """Each call that loses its node forgets the map; calls to other nodes wait for it meanwhile."""
    router = make_router(parse(redis_cluster.url), Clock())
    asking = asyncio.create_task(ask(router))
    while not router._map:  # type: ignore[attr-defined]  # noqa: ASYNC110 - the very turn
        await asyncio.sleep(0)
    router.leave(None)
    assert await asking
    await router.close()


def replica_has_all(master: services.RedisServer) -> bool:
    offsets = re.findall(r"(?<=offset[:=])\d+", master.cli("info", "replication"))
    return len(offsets) >= 2 and offsets[0] == offsets[1]


@pytest.mark.slow
async def test_a_dead_node_is_unavailable_until_its_replica_takes_over(
    replicated_cluster: services.RedisCluster, open_queue: Open
) -> None:
    """What the replica has is served on; the other nodes serve throughout."""
    queue = await open_queue(f"{replicated_cluster.url}?timeout=1")
    queues = queues_on_every_node(queue)
    await asyncio.gather(*[one.post("a") for one in queues])
    for master in replicated_cluster.nodes[:3]:  # what a replica has not got yet would be lost
        await asyncio.to_thread(
            services.process.wait_until,
            partial(replica_has_all, master),
            replicated_cluster.processes,
        )
    replicated_cluster.nodes[0].processes[0].kill()
    with pytest.raises(Unavailable):
        await asyncio.gather(*[one.bodies() for one in queues])
    begun = time.monotonic()
    served = await until_available(lambda: asyncio.gather(*[one.bodies() for one in queues]))
    assert served == [["a"]] * 3
    print(f"served again after {time.monotonic() - begun:.1f} s")


async def test_a_cluster_of_one_node_serves_as_one_server(open_queue: Open) -> None:
    port = str(services.free_ports(1)[0])
    options = ("--cluster-enabled", "yes", "--cluster-port", port)
    with services.start_redis(options=options) as server:
        server.cli("cluster", "addslotsrange", "0", "16383")
        wait_until(lambda: "cluster_state:ok" in server.cli("cluster", "info"), server.processes)
        queue = await open_queue(server.url)
        await queue.post("a")
        assert texts((await queue.claim()).messages) == ["a"]
        await queue.stores.close()


async def test_a_cluster_that_names_no_hosts_is_reached_by_those_of_the_uri(
    open_queue: Open,
) -> None:
    """Behind a load balancer or in containers, nodes tell their ports alone."""
    options = ("--cluster-preferred-endpoint-type", "unknown-endpoint")
    with services.start_redis_cluster(options=options) as cluster:
        queue = await open_queue(cluster.url)
        queues = queues_on_every_node(queue)
        await asyncio.gather(*[one.post("a") for one in queues])
        router = queue.stores.messages._connection.router  # type: ignore[attr-defined]
        wrong = router._map[keys_of(queues[0].ref).slot]
        for one in queues:
            router._map[keys_of(one.ref).slot] = wrong
        assert await asyncio.gather(*[one.bodies() for one in queues]) == [["a"]] * 3
        await queue.stores.close()
