"""Signals of what became ready: between processes, over lost connections, and in a cluster."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest

from tests import services
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.steps import forwarding, queues_on_every_node, standing_still
from tests.services import RedisServer
from tests.waiting import until
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, DeadLetter, QueueRef, RetryPolicy
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.redis import readiness
from zaqar_lite.storage.redis.address import parse
from zaqar_lite.storage.redis.keys import EVERYWHERE, keys_of
from zaqar_lite.storage.redis.messages import RedisMessageStore
from zaqar_lite.storage.redis.router import make_router
from zaqar_lite.storage.redis.runner import policy_words

pytestmark = pytest.mark.anyio


def subscribers(client: Any, queue: QueueUnderTest) -> int:
    found: list[Any] = client.execute_command(
        "PUBSUB", "SHARDNUMSUB", keys_of(queue.ref).key("readiness")
    )
    return int(found[1])


async def test_a_lost_connection_makes_a_waiter_look_once_there_is_another(
    queue: QueueUnderTest, client: Any
) -> None:
    """What was told meanwhile is lost; nobody waits for the next poll. And signals come again."""
    queue.stores.messages.poll_interval_ms = 600_000
    second = queue.at(await queue.stores.second())
    waiting = LongPolling(queue.stores.messages, most=2, most_per_project=2)
    gone = asyncio.get_running_loop().create_future()

    async def ask() -> Claimed | None:
        claimed = await queue.claim(1)
        return claimed if claimed.messages else None

    for _ in range(2):
        claiming = asyncio.create_task(waiting.until_found(queue.ref, 60, ask, gone=gone))
        await until(lambda: subscribers(client, queue) == 1)
        await asyncio.sleep(0.2)  # the waiter has looked, and sleeps
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await second.post("a")
        async with asyncio.timeout(20):
            assert await claiming is not None


async def test_a_connection_that_falls_silent_is_found_out_and_waiters_look_again(
    own_redis: RedisServer, client: Any, open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that drops all packets tells nobody: neither side hears that the other is gone."""
    monkeypatch.setattr(readiness, "_LOOK_EVERY", 0.05)
    subscribed: set[asyncio.StreamWriter] = set()
    cut: set[asyncio.StreamWriter] = set()

    def pass_on(connection: asyncio.StreamWriter, sent: bytes) -> bool:
        if b"SSUBSCRIBE" in sent:
            subscribed.add(connection)
        return connection not in cut

    async with forwarding(own_redis.port, pass_on) as port:
        queue = await open_queue(f"redis://127.0.0.1:{port}?timeout=2")
        heard: list[int] = []
        await queue.stores.messages.watch(queue.ref, heard.append)
        await until(lambda: bool(subscribed))
        assert not heard
        cut |= subscribed
        await until(lambda: -1 in heard)
        await queue.post("a")
        await until(lambda: 1 in heard)
        await queue.stores.close()


async def test_one_connection_carries_the_signals_of_all_watched_queues(
    queue: QueueUnderTest, client: Any
) -> None:
    def connections() -> int:
        return sum(each["sub"] != "0" or each["ssub"] != "0" for each in client.client_list())

    queues = [queue.named(f"{queue.ref.name}-{number}") for number in range(200)]
    watches = [await queue.stores.messages.watch(each.ref, print) for each in queues]
    assert connections() == 1
    assert all(subscribers(client, each) == 1 for each in queues)
    for watch in watches[1:]:
        watch.end()
    await until(lambda: not any(subscribers(client, each) for each in queues[1:]))
    assert subscribers(client, queues[0]) == 1


async def test_a_watch_that_was_asked_for_while_redis_is_away_begins_when_it_is_back(
    queue: QueueUnderTest, own_redis: RedisServer, client: Any
) -> None:
    """Asking does not wait. Nobody heard what became ready meanwhile, so waiters look once."""
    heard: list[int] = []
    await asyncio.to_thread(own_redis.kill)
    async with asyncio.timeout(5):
        await queue.stores.messages.watch(queue.ref, heard.append)
    await asyncio.to_thread(own_redis.start)
    await until(lambda: subscribers(client, queue) == 1)
    await until(lambda: heard == [-1])
    await queue.post("a")
    await until(lambda: heard == [-1, 1])


async def test_who_watched_before_a_stalled_redis_confirmed_it_looks_once(
    queue: QueueUnderTest, own_redis: RedisServer, client: Any
) -> None:
    heard: list[int] = []
    await queue.stores.messages.watch(queue.named("other").ref, print)
    with standing_still(own_redis):
        await queue.stores.messages.watch(queue.ref, heard.append)
    await until(lambda: heard == [-1])


async def test_a_watch_that_was_given_up_leaves_no_subscription(
    queue: QueueUnderTest, own_redis: RedisServer, client: Any
) -> None:
    await queue.stores.messages.watch(queue.named("other").ref, print)
    with standing_still(own_redis):
        watching = asyncio.create_task(queue.stores.messages.watch(queue.ref, print))
        await asyncio.sleep(0.1)  # it was sent, and is not confirmed
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await queue.post("a")
    await until(lambda: not subscribers(client, queue))


async def test_a_node_that_is_away_keeps_no_signals_of_others_away(open_queue: Open) -> None:
    options = ("--cluster-require-full-coverage", "no")
    with services.start_redis_cluster(options=options) as cluster:
        queue = await open_queue(cluster.url)
        (gone, first), (_, second) = [
            (node, each)
            for node, each in zip(cluster.nodes, queues_on_every_node(queue), strict=True)
        ][:2]
        heard: list[int] = []
        await queue.stores.messages.watch(first.ref, print)
        await queue.stores.messages.watch(second.ref, heard.append)
        await asyncio.to_thread(gone.kill)
        cluster.nodes[1].cli("client", "kill", "type", "pubsub")
        await until(lambda: heard == [-1])


async def test_the_soonest_of_the_letters_that_come_together_is_told(
    queue: QueueUnderTest, client: Any
) -> None:
    """To who waits, and to the sweep, which comes when it is due."""
    target = queue.named(f"{queue.ref.name}-target")
    heard: list[int] = []
    await queue.stores.messages.watch(target.ref, heard.append)
    store = queue.stores.messages
    assert isinstance(store, RedisMessageStore)
    router = store._connection.router
    for delay in (HOUR, 2_000):
        (posted_id,) = await queue.post("a", ttl=2 * HOUR)
        retries = RetryPolicy(DeadLetter(target.ref, ttl_ms=2 * HOUR))
        words = ["", delay, "", "", *policy_words(queue.ref, retries), bytes.fromhex(posted_id)]
        await router.run("move", keys_of(queue.ref), *words)
    await store._outbox.drain(queue.ref)
    await until(lambda: heard == [0])
    soon = queue.stores.clock.now_ms() + MINUTE
    index, tag = EVERYWHERE.key("visits"), keys_of(target.ref).tag
    await until(lambda: (client.zscore(index, tag) or math.inf) < soon)


async def test_what_is_due_soon_is_told(queue: QueueUnderTest) -> None:
    """Sooner than who waits looks again (30 s): a short delay, a short wait, a short lease."""
    heard: list[int] = []
    await queue.stores.messages.watch(queue.ref, heard.append)
    await queue.post("a", delay=20_000)
    await queue.post("b")
    await until(lambda: heard == [0, 1])
    claim_id = await queue.claim_id(ttl=MINUTE)
    await queue.release(claim_id, delay=2_000)
    await until(lambda: heard == [0, 1, 0])
    await queue.post("c")
    await queue.claim(ttl=30_000)
    await until(lambda: heard == [0, 1, 0, 1, 0])


async def test_a_redis_that_refuses_to_be_asked_is_not_asked_again_and_again() -> None:
    asked = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        with suppress(ConnectionError):
            while await reader.read(4_096):
                writer.write(b"-NOAUTH Authentication required.\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    signals = readiness.Readiness(make_router(parse(f"redis://127.0.0.1:{port}"), Clock()))
    await signals.watch(QueueRef("project", "queue"), lambda *_: None)
    await until(lambda: asked >= 3)
    assert asked < 20
    await signals.close()
    server.close()


async def test_signals_come_from_every_node_of_a_cluster(
    redis_cluster: services.RedisCluster, open_queue: Open
) -> None:
    queue = await open_queue(redis_cluster.url)
    second = await queue.stores.second()
    heard: list[QueueRef] = []
    queues = queues_on_every_node(queue)
    for each in queues:

        def hear(_: int, ref: QueueRef = each.ref) -> None:
            heard.append(ref)

        await queue.stores.messages.watch(each.ref, hear)
    for each in queues:
        await each.at(second).post("a")
        await until(lambda: len(heard) == queues.index(each) + 1)  # noqa: B023 - awaited here
    assert sorted(heard) == sorted(each.ref for each in queues)


async def test_signals_follow_a_slot_that_moves(
    redis_cluster: services.RedisCluster, open_queue: Open
) -> None:
    queue = await open_queue(redis_cluster.url)
    heard: list[int] = []
    await queue.stores.messages.watch(queue.ref, heard.append)
    nodes, slot = redis_cluster.nodes, keys_of(queue.ref).slot
    ids = [node.cli("cluster", "myid").strip() for node in nodes]
    away = nodes[(slot * 3 // 16_384 + 1) % 3]
    for node in (away, *nodes):
        node.cli("cluster", "setslot", str(slot), "node", ids[nodes.index(away)])
    async with asyncio.timeout(30):
        while not heard:
            await queue.post("a")
            await asyncio.sleep(0.1)
