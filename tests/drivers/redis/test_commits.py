"""What follows a commit takes no answer away: another node is down or slow, or a script fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from tests import services
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, texts
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.steps import (
    crash_before,
    exhaust,
    lost,
    queues_on_every_node,
    standing_still,
    watching,
)
from tests.waiting import until
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import SweepResult
from zaqar_lite.storage.redis.connection import FollowUps
from zaqar_lite.storage.redis.faults import ConnectionLost, InDoubt
from zaqar_lite.storage.redis.keys import EVERYWHERE
from zaqar_lite.storage.redis.link import Link

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("script", ["register", "accept", "outbox_ack"])
async def test_what_was_committed_is_answered(
    queue: QueueUnderTest, slotted: QueueUnderTest, script: str
) -> None:
    queue = slotted if script == "register" else queue
    target = queue.named(f"{queue.ref.name}-dead")
    policy = target.as_dead_letter_queue(1)
    await exhaust(queue, "letter")
    await queue.claim(1, dead_letter=policy)  # registers both queues, so that all get far
    if script == "register":
        queue.advance(MINUTE)  # or that would serve for the next letters too
    await exhaust(queue, "next letter")
    with crash_before(script):
        (message_id,) = await queue.named(f"{queue.ref.name}-new").post("a")
        await queue.post("b", "c")
        assert message_id
        if script == "register":
            with pytest.raises(Unavailable):  # nothing was taken, and no letter may leave
                await queue.claim(1, dead_letter=policy)
            assert texts((await queue.pop(1)).messages) == ["next letter"]
        assert texts((await queue.claim(1, dead_letter=policy)).messages) == ["b"]
        assert texts((await queue.pop(1, dead_letter=policy)).messages) == ["c"]
    queue.advance(MINUTE)
    await queue.sweep()
    assert await target.bodies() == ["letter", "next letter"][: 1 if script == "register" else 2]


async def test_what_was_just_begun_ends_with_its_owner() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    follow_ups = FollowUps()
    task = follow_ups.begin(work())
    await follow_ups.close()
    assert ended == ["work"]
    assert task.cancelled()


async def test_what_was_taken_before_a_letter_is_answered(slotted: QueueUnderTest) -> None:
    """A letter is next, and the sweep can't be told of it: that is another call's affair."""
    queue = slotted
    target = queue.named(f"{queue.ref.name}-dead")
    await queue.post("fresh")
    await queue.claim(1)
    await exhaust(queue, "letter")
    held = await queue.claim_id(1)
    await queue.post("behind")
    queue.advance(20 * MINUTE)
    await queue.release(held)
    with crash_before("register"):
        claimed = await queue.claim(dead_letter=target.as_dead_letter_queue(2))
    assert texts(claimed.messages) == ["fresh", "behind"]
    assert claimed.more
    with crash_before("register"), pytest.raises(Unavailable):
        await queue.claim(dead_letter=target.as_dead_letter_queue(2))
    claimed = await queue.claim(dead_letter=target.as_dead_letter_queue(2))
    assert (texts(claimed.messages), claimed.moved) == ([], 1)


async def test_a_repeat_that_was_not_sent_may_have_been_carried_out(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt was sent, the second not: the answer must not say that nothing was."""
    await queue.post("a")
    losses = [ConnectionLost("the first attempt", sent=True), ConnectionLost("again", sent=False)]

    def lose(self: Link, *words: object) -> object:
        raise losses.pop(0)

    monkeypatch.setattr(Link, "send", lose)
    with pytest.raises(Unavailable, match="may or may not"):
        await queue.counts()


async def test_a_claim_whose_answer_is_lost_holds_nothing(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.named(f"{queue.ref.name}-other").claim()  # Redis knows the script from now on
    await queue.post("a", "b")
    send = Link.send

    def lose_the_answer(self: Link, *words: str | bytes | int) -> asyncio.Future[object]:
        monkeypatch.setattr(Link, "send", send)
        return lost(send(self, *words))

    monkeypatch.setattr(Link, "send", lose_the_answer)
    with pytest.raises(Unavailable, match="may or may not"):
        await queue.claim(ttl=HOUR)
    await until(queue.counts, lambda counts: counts[0] == 2)
    again = (await queue.claim()).messages
    assert [(one.claim_count, one.failure_count) for one in again] == [(2, 0), (2, 0)]


async def test_a_deletion_whose_answer_is_lost_leaves_alone_what_came_since(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver must not repeat it: the queue may have been made again by then."""
    management, send = queue.stores.management, Link.send
    await management.create_queue(queue.ref, {}, max_queues=10_000)
    loop = asyncio.get_running_loop()
    making: list[asyncio.Task[None]] = []

    async def make_again(instead: asyncio.Future[object]) -> None:
        await management.create_queue(queue.ref, {}, max_queues=10_000)
        await queue.post("a")
        instead.set_exception(ConnectionLost("after the call", sent=True))

    def lose_the_answer(self: Link, *words: str | bytes | int) -> asyncio.Future[object]:
        answer = send(self, *words)
        if words[0] != "FCALL" or not str(words[1]).endswith("_drop") or making:
            return answer
        instead = loop.create_future()
        answer.add_done_callback(lambda _: making.append(loop.create_task(make_again(instead))))
        return instead

    monkeypatch.setattr(Link, "send", lose_the_answer)
    with pytest.raises(Unavailable, match="may or may not"):
        await queue.drop()
    assert await queue.bodies() == ["a"]
    assert await management.get_queue(queue.ref) is not None


async def test_a_claim_whose_second_step_is_lost_holds_nothing(queue: QueueUnderTest) -> None:
    """What that step took is told nobody, and must not count as failed when its lease lapses."""
    await queue.post(*["x" * 2_000] * 150)
    called: list[str] = []

    def lose_the_second(operation: str, _: object) -> None:
        called.append(operation)
        if operation == "claim" and called.count("claim") == 2:
            raise InDoubt("after the call")

    with watching(lose_the_second):
        with pytest.raises(Unavailable):
            await queue.claim(150)
        await until(queue.counts, lambda counts: counts == (150, 0, 0))


@pytest.fixture(scope="module")
def partial_cluster() -> Iterator[services.RedisCluster]:
    """A cluster whose nodes serve their slots whatever becomes of the others."""
    options = ("--cluster-require-full-coverage", "no")
    with services.start_redis_cluster(options=options) as cluster:
        yield cluster


@dataclass
class Scene:
    """A queue on the node that has the indexes over all queues, and one on another node."""

    beside: QueueUnderTest
    away: QueueUnderTest
    node_of_indexes: services.RedisServer
    node_away: services.RedisServer


@pytest.fixture
async def scene(partial_cluster: services.RedisCluster, open_queue: Open) -> AsyncIterator[Scene]:
    """Two queues on two nodes; their nodes are up again when the test is over."""
    queue = await open_queue(f"{partial_cluster.url}?timeout=20")
    queues, third = queues_on_every_node(queue), EVERYWHERE.slot * 3 // 16_384
    nodes = partial_cluster.nodes
    yield Scene(queues[third], queues[third - 1], nodes[third], nodes[third - 1])
    for node in nodes:
        if not node.processes[0].alive():
            node.start()
    await asyncio.to_thread(services.process.wait_until, partial_cluster.ready, ())


async def test_one_dead_node_stops_nothing_on_another(scene: Scene) -> None:
    await scene.away.post("a", "b")
    await asyncio.to_thread(scene.node_of_indexes.kill)
    await scene.away.stores.messages.ping()
    (message_id,) = await scene.away.post("c", ttl=2 * MINUTE)
    claimed = await scene.away.claim(1)
    assert texts(claimed.messages) == ["a"]
    assert texts((await scene.away.pop()).messages) == ["b", "c"]
    assert not await scene.away.get(message_id)
    with pytest.raises(Unavailable):
        await scene.beside.post("no")


async def test_letters_to_a_dead_node_wait_for_it(scene: Scene) -> None:
    policy = scene.away.as_dead_letter_queue(1)
    await exhaust(scene.beside, "letter")
    await scene.beside.post("fresh")
    await asyncio.to_thread(scene.node_away.kill)
    popped = await scene.beside.pop(dead_letter=policy)
    assert (texts(popped.messages), popped.moved) == (["fresh"], 1)
    await asyncio.to_thread(scene.node_away.start)
    scene.beside.advance(MINUTE)
    for _ in range(200):
        await scene.beside.stores.messages.sweep(100)
        with contextlib.suppress(Unavailable):
            if await scene.away.bodies():
                break
        scene.beside.advance(10_000)
        await asyncio.sleep(0.05)
    assert await scene.away.bodies() == ["letter"]


async def test_a_node_that_is_silent_does_not_hold_up_an_answer(scene: Scene) -> None:
    policy = scene.away.as_dead_letter_queue(1)
    await exhaust(scene.beside, "letter")
    await scene.beside.post("fresh")
    with standing_still(scene.node_away):
        async with asyncio.timeout(10):  # the store's own patience is 20 s
            popped = await scene.beside.pop(dead_letter=policy)
    assert (texts(popped.messages), popped.moved) == (["fresh"], 1)
    await until(scene.away.bodies, lambda bodies: bodies == ["letter"])  # it goes on by itself


async def test_a_dead_node_does_not_stop_the_sweep_of_others(scene: Scene) -> None:
    await scene.away.post("x", ttl=MINUTE)
    await scene.beside.post("y", ttl=2 * MINUTE)
    await asyncio.to_thread(scene.node_away.kill)
    scene.beside.advance(3 * MINUTE)
    swept_now = await scene.beside.stores.messages.sweep(100)
    assert swept_now == SweepResult(expired=1)
