"""No call is long, whatever a queue holds: each does a bounded part, and the next one goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest

from tests.contract.subject import (
    HOUR,
    MINUTE,
    QueueUnderTest,
    ack,
    bury,
    fail,
    give_back,
    ids,
    new,
    texts,
)
from tests.drivers.redis.inspection import check_queues
from tests.drivers.redis.steps import BULK, crash_before, examined, fill, reject, watching
from zaqar_lite.domain.models import DelayMode, RetryPolicy
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.router import Router

pytestmark = pytest.mark.anyio

CROWD = 3 * BULK


async def gather_crowd(queue: QueueUnderTest, kind: str) -> None:
    """Put a crowd of one kind before one ready message, all of it at one instant."""
    if kind == "expired":
        await fill(queue, CROWD, ttl=MINUTE)
    elif kind == "due":
        await fill(queue, CROWD, delay=MINUTE)
    else:
        await fill(queue, CROWD)
        limit = 5 if kind == "lapsed" else 500
        while (await queue.claim(limit, ttl=MINUTE)).messages:
            pass
    if kind == "exhausted":
        queue.advance(2 * MINUTE)
        await queue.sweep()
    await queue.post("behind")
    queue.advance(2 * MINUTE)


@pytest.mark.parametrize("kind", ["expired", "due", "lapsed", "exhausted"])
@pytest.mark.parametrize("how", ["claim", "pop"])
async def test_what_is_taken_behind_a_crowd_is_bounded_and_goes_on(
    queue: QueueUnderTest, kind: str, how: str
) -> None:
    await gather_crowd(queue, kind)
    target = queue.named(f"{queue.ref.name}-dead")
    policy = target.as_dead_letter_queue(1) if kind == "exhausted" else None
    mode = DelayMode.HONOUR if kind == "due" else DelayMode.IGNORE
    take = queue.claim if how == "claim" else queue.pop
    moved = 0
    for _ in range(CROWD // 100):
        before = examined(queue)
        taken = await take(1, mode=mode, dead_letter=policy)
        assert examined(queue) - before <= MAX_EXAMINED
        moved += taken.moved
        if taken.messages:
            break
        assert taken.more, "an empty answer says that there is more"
    else:
        pytest.fail("taking made no progress")
    assert moved == (CROWD if kind == "exhausted" else 0)


@pytest.mark.parametrize("kind", ["expired", "due", "lapsed"])
async def test_the_sweep_goes_on_until_nothing_is_left(queue: QueueUnderTest, kind: str) -> None:
    await gather_crowd(queue, kind)
    steps = [step async for step in sweeps(queue)]
    assert sum(steps) >= CROWD  # queues of other tests lie in the same server
    assert max(steps) <= MAX_EXAMINED + 400
    assert await queue.counts() == (1 if kind == "expired" else CROWD + 1, 0, 0)


@pytest.mark.parametrize("kind", ["expired", "due", "lapsed"])
async def test_a_crowd_is_counted_in_steps(queue: QueueUnderTest, kind: str) -> None:
    await gather_crowd(queue, kind)
    steps: list[int] = []
    with watching(lambda _, reply: steps.append(reply[2] if reply[0] == b"again" else 0)):
        assert await queue.counts() == (1 if kind == "expired" else CROWD + 1, 0, 0)
    assert len(steps) > CROWD // MAX_EXAMINED
    assert max(steps) <= MAX_EXAMINED


async def sweeps(queue: QueueUnderTest, limit: int = MAX_EXAMINED) -> AsyncIterator[int]:
    """What each sweep did, until one finds nothing to do."""
    while total := (await queue.stores.messages.sweep(limit)).total:
        yield total


async def test_letters_that_piled_up_are_brought_in_several_sweeps(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    """Their target was away for long, and what waits in other queues must not wait for all."""
    with crash_before("accept"):
        for _ in range(6):
            await reject(queue, target, *["x"] * 100)
        await asyncio.sleep(0.05)  # what follows a settlement is begun before its answer
    queue.advance(MINUTE)
    steps = [step async for step in sweeps(queue, 150)]
    assert sum(steps) >= 600
    assert max(steps) <= 300
    assert await target.counts() == (600, 0, 0)


async def test_a_read_behind_a_crowd_goes_on_in_steps(queue: QueueUnderTest) -> None:
    await fill(queue, CROWD, ttl=HOUR)
    await queue.stores.messages.post(queue.ref, [new("x")], client_id="another", version=None)
    steps: list[int] = []
    with watching(lambda called, reply: steps.append(reply[2] if called == "list" else 0)):
        page = await queue.page(limit=5, exclude="producer", claimed=False)
    assert len(page.messages) == 1
    assert max(steps) <= MAX_EXAMINED
    assert sum(steps) == CROWD + 1


async def test_a_large_body_goes_where_its_message_goes(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    bodies = [letter * 200_000 for letter in "abcd"]
    policy = RetryPolicy(target.as_dead_letter_queue())
    posted = [*await queue.post(bodies[0]), *await queue.post("small", *bodies[1:])]
    claimed = await queue.claim(10)
    assert texts(claimed.messages) == [bodies[0], "small", *bodies[1:]]
    claim_id = claimed.claim_id or ""
    await queue.renew(claim_id)
    acts = [ack(posted[0]), give_back(posted[1]), *[bury(one) for one in posted[2:]]]
    assert await queue.outcomes(claim_id, *acts, retries=policy) == [Outcome.DONE] * 5
    assert await target.bodies() == bodies[1:]
    assert await target.move(queue, *posted[2:], delay=HOUR) == [Outcome.DONE] * 3
    assert texts(await queue.get(*posted)) == ["small", *bodies[1:]]
    for text in ("short", bodies[0], bodies[1]):
        assert texts([await queue.edit(posted[2], text)]) == [text]
    assert not await queue.delete(posted[3])
    assert await queue.release_delayed() == 2
    check_queues(client, queue)
    assert texts((await queue.pop(10)).messages) == ["small", bodies[1], bodies[3]]
    assert not client.exists(keys_of(queue.ref).key("bodies"))


async def test_a_large_body_that_is_edited_is_not_missed(queue: QueueUnderTest) -> None:
    """Bodies are read behind their messages: an edit may come in between."""
    (posted,) = await queue.post(new("x" * 3_000, delay=HOUR))
    command, texts_to_come = Router.command, ["short", "y" * 4_000, ""]

    async def edited_before(self: Router, *words: Any, **options: Any) -> Any:
        await queue.edit(posted, texts_to_come.pop(0))
        return await command(self, *words, **options)

    with patch.object(Router, "command", edited_before):
        for act in (queue.get(posted), queue.listed(), queue.get(posted)):
            assert ids(await act) == [posted]
    assert not texts_to_come


async def test_a_step_reads_large_bodies_one_by_one(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    def steps() -> int:
        found = client.info("commandstats").get("cmdstat_fcall", {"calls": 0})
        client.config_resetstat()
        return int(found["calls"])

    large = [letter * 250_000 for letter in "abc"]
    posted = [one for text in large for one in await queue.post(text)]
    steps()
    claimed = await queue.claim(3)
    assert texts(claimed.messages) == large
    assert steps() == 1, "they are read behind the step"
    await queue.release(claimed.claim_id or "")
    assert await queue.move(target, *posted) == [Outcome.DONE] * 3
    assert steps() >= 9, "move, accept and acknowledge"
    popped = await target.pop(3)
    assert (texts(popped.messages), popped.more) == (large, False)
    assert steps() == 3


async def test_expired_messages_of_many_bytes_leave_in_several_steps(
    queue: QueueUnderTest, client: Any
) -> None:
    """Their records are read, to count the bytes that go."""
    await queue.post(*["x" * 2_000] * 250, ttl=MINUTE)
    queue.advance(2 * MINUTE)
    client.config_resetstat()
    assert await queue.counts() == (0, 0, 0)
    assert client.info("commandstats")["cmdstat_fcall"]["calls"] >= 3


async def test_lapsed_leases_of_large_messages_become_dead_letters_in_several_steps(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    await queue.post(*["x" * 30_000] * 20)
    await queue.claim(20, ttl=MINUTE)
    queue.advance(2 * MINUTE)
    claimed = await queue.claim(20, dead_letter=target.as_dead_letter_queue(max_failures=1))
    assert (claimed.moved, claimed.messages, claimed.more) == (7, [], True)


async def test_long_histories_are_written_in_several_steps(
    queue: QueueUnderTest, client: Any
) -> None:
    await queue.post(*["x"] * 40)
    for _ in range(10):
        claimed = await queue.claim(40)
        acts = [fail(one.id, detail="d" * 2_000) for one in claimed.messages]
        client.config_resetstat()
        assert await queue.outcomes(claimed.claim_id or "", *acts) == [Outcome.DONE] * 40
    assert client.info("commandstats")["cmdstat_fcall"]["calls"] >= 3
    assert len((await queue.claim(40, ttl=MINUTE)).messages) == 40
    queue.advance(2 * MINUTE)
    assert (await queue.claim(40)).more, "leases that lapsed are ended in several steps too"
    await queue.sweep()
    assert sum((await queue.counts())[::2]) == 40
