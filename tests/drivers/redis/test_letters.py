"""Dead letters between two slots: a crash at every step, and repeats however late."""

import asyncio
import json
from contextlib import nullcontext
from typing import Any

import pytest

from tests.contract.pausing import pause_after, pause_before, stopped
from tests.contract.subject import HOUR, MINUTE, SECOND, QueueUnderTest, bury, extend, new
from tests.contract.test_outbox_messages import arrived, with_note
from tests.drivers.redis.inspection import check_queues, keys_by_tag
from tests.drivers.redis.steps import crash_before, exhaust, reject
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import RetryPolicy
from zaqar_lite.storage.redis.keys import EVERYWHERE, keys_of
from zaqar_lite.storage.redis.outbox import Outbox
from zaqar_lite.storage.redis.runner import Runner

pytestmark = pytest.mark.anyio

DAY = 24 * HOUR


def last_from(source: QueueUnderTest, target: QueueUnderTest) -> bytes:
    """The key that has the number of the last letter from another queue."""
    return keys_of(target.ref).key("brought") + keys_of(source.ref).tag.encode()


@pytest.mark.parametrize("step", ["claim", "accept", "outbox_ack"])
async def test_a_crash_at_any_step_is_finished_by_the_sweep(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any, step: str
) -> None:
    ids = await exhaust(queue, "a", "b")
    with crash_before(step), pytest.raises(Unavailable) if step == "claim" else nullcontext():
        claimed = await queue.claim(dead_letter=target.as_dead_letter_queue(1))
        assert claimed.moved == 2
    if step == "accept":
        assert await queue.bodies() == await target.bodies() == []
        assert not (await queue.claim()).messages
        assert not (await target.claim()).messages
    second = queue.at(await queue.stores.second())
    queue.advance(MINUTE + SECOND)
    moved = sum(step.moved for step in await second.sweep())
    if step == "claim":
        assert await queue.bodies() == ["a", "b"]
        await queue.claim(dead_letter=target.as_dead_letter_queue(1))
    else:
        assert moved == 2
    assert [message.id for message in await target.listed()] == ids
    assert await queue.bodies() == []
    check_queues(client, queue)


async def test_a_crash_after_the_claim_said_that_letters_come_is_noticed(
    slotted: QueueUnderTest, client: Any
) -> None:
    """The queue is registered before anything is in its outbox, and not forgotten in between."""
    queue, target = slotted, slotted.named(f"{slotted.ref.name}-dead")
    await exhaust(queue, "a")
    claim = queue.claim(dead_letter=target.as_dead_letter_queue(1))
    async with stopped(pause_before(Runner, "_register"), claim):
        assert "outbox" not in keys_by_tag(client)[keys_of(queue.ref).tag]
        await queue.sweep()  # it looks at the queue just before the letters come
    visit = client.zscore(EVERYWHERE.key("visits"), keys_of(queue.ref).tag)
    assert visit - queue.stores.clock.now_ms() <= MINUTE + SECOND
    assert await target.bodies() == ["a"]


async def test_a_sweep_right_after_the_registration_comes_again_soon(
    slotted: QueueUnderTest, client: Any
) -> None:
    """It has found nothing yet; the letters come behind its back, and their claim dies."""
    queue, target = slotted, slotted.named(f"{slotted.ref.name}-dead")
    await exhaust(queue, "a")
    claim = queue.claim(dead_letter=target.as_dead_letter_queue(1))
    with crash_before("accept"):
        async with stopped(pause_after(Runner, "_register"), claim):
            await queue.sweep()
    visit = client.zscore(EVERYWHERE.key("visits"), keys_of(queue.ref).tag)
    assert visit - queue.stores.clock.now_ms() <= MINUTE + SECOND
    queue.advance(MINUTE + SECOND)
    await queue.sweep()
    assert await target.bodies() == ["a"]


@pytest.mark.parametrize("step", ["accept", "outbox_ack"])
@pytest.mark.parametrize("comes_between", [False, True])
async def test_what_a_settlement_left_is_finished_by_the_sweep(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any, step: str, comes_between: bool
) -> None:
    """Also where an earlier registration serves, and the sweep has looked at the queue since."""
    await target.arrived(await reject(queue, target, "a"), 1)
    second = queue.at(await queue.stores.second())
    if comes_between:
        queue.advance(3 * SECOND)
        await second.sweep()
    with crash_before("register"), crash_before(step):
        left = await reject(queue, target, "b", "c")
        if step == "accept":
            await asyncio.sleep(0.05)
            assert await target.bodies() == ["a"]
            assert not await queue.bodies()
        else:
            await target.arrived(left, 2)
    queue.advance(6 * SECOND)
    await second.sweep()
    assert await target.bodies() == ["a", "b", "c"]
    check_queues(client, queue)


async def test_a_registration_serves_for_five_seconds_and_no_longer(
    slotted: QueueUnderTest,
) -> None:
    queue, target = slotted, slotted.named(f"{slotted.ref.name}-dead")
    await reject(queue, target, "a")
    queue.advance(3 * SECOND)
    with crash_before("register"):
        await target.arrived(await reject(queue, target, "b"), 1)
        queue.advance(3 * SECOND)
        with pytest.raises(Unavailable):
            await reject(queue, target, "c")
    assert await target.bodies() == ["a", "b"]


async def test_a_settlement_that_could_not_register_changes_nothing(
    slotted: QueueUnderTest, client: Any
) -> None:
    queue, policy = slotted, RetryPolicy(slotted.named("dead").as_dead_letter_queue())
    stays, letter = await queue.post("stays", "letter", ttl=HOUR)
    claim_id, expiry = await queue.claim_id(2), keys_of(queue.ref).key("expiry")
    before = client.zrange(expiry, 0, -1, withscores=True)
    acts = [extend(stays, DAY), bury(letter)]
    with crash_before("register"), pytest.raises(Unavailable):
        await queue.stores.messages.settle(queue.ref, claim_id, acts, retries=policy)
    assert client.zrange(expiry, 0, -1, withscores=True) == before


async def test_letters_that_race_overtake_nobody(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    """A letter that came before those with lower numbers would make them repeats."""
    await target.arrived(await reject(queue, target, "a"), 1)
    others = [queue.at(await queue.stores.second()) for _ in range(2)]
    async with stopped(pause_before(Outbox, "deliver"), reject(queue, target, "b")):
        await target.arrived(await reject(others[0], target, "c"), 1)
        assert await target.bodies() == ["a", "b", "c"]
    rivals = [(one, str(number)) for number in range(10) for one in (queue, *others)]
    await asyncio.gather(*(reject_next(one, target, text) for one, text in rivals))
    queue.advance(MINUTE + SECOND)
    await queue.sweep()
    assert len(await target.bodies()) == 3 + len(rivals)


async def reject_next(queue: QueueUnderTest, target: QueueUnderTest, text: str) -> None:
    """Post a message, and reject whichever is the next."""
    await queue.post(text)
    (message,) = (await queue.claim(1)).messages
    policy = RetryPolicy(target.as_dead_letter_queue())
    assert (await queue.settle(message.claim_id or "", bury(message.id), retries=policy)).moved == 1


async def test_a_late_repeat_brings_no_letter_back(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    await exhaust(queue, "a")
    with crash_before("outbox_ack"):
        await queue.claim(dead_letter=target.as_dead_letter_queue(1))
    (letter,) = (await target.pop()).messages  # it has arrived, and is consumed
    assert letter.origin is not None
    queue.advance(MINUTE)
    await queue.sweep()
    assert await target.bodies() == []
    await exhaust(queue, "b")
    await queue.claim(dead_letter=target.as_dead_letter_queue(1))
    assert await target.bodies() == ["b"]


@pytest.mark.parametrize("there", ["there", "back"])
async def test_a_repeat_after_days_adds_nothing_to_what_is_there(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any, there: str
) -> None:
    """The numbers of letters are forgotten by then; of two with one id one could not be settled."""
    await exhaust(queue, "a")
    with crash_before("outbox_ack"):
        await queue.claim(dead_letter=target.as_dead_letter_queue(1))
    if there == "back":  # at a new position
        (letter,) = await target.listed()
        await target.move(target, letter.id)
    assert client.delete(last_from(queue, target)) == 1
    queue.advance(MINUTE)
    await queue.sweep()
    (letter,) = (await target.claim(10)).messages
    assert not await target.delete(letter.id, claims=[letter.claim_id or ""])
    assert await target.counts() == (0, 0, 0)


async def test_a_letter_that_comes_while_others_are_brought_is_not_forgotten(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    """What is removed from the outbox is what has arrived, and not what has come since."""
    policy = target.as_dead_letter_queue(1)
    await exhaust(queue, "a")
    async with stopped(pause_after(Outbox, "_let_in"), queue.claim(dead_letter=policy)):
        await exhaust(queue, "b")
        with crash_before("accept"):
            await queue.claim(dead_letter=policy)
    queue.advance(MINUTE + SECOND)
    await queue.sweep()
    assert await target.bodies() == ["a", "b"]


async def test_letters_on_their_way_outlive_their_source(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    await exhaust(queue, "a")
    with crash_before("accept"):
        await queue.claim(dead_letter=target.as_dead_letter_queue(1))
    await queue.stores.messages.purge(queue.ref)
    await queue.stores.messages.purge(queue.ref, forget=True)
    queue.advance(MINUTE)
    await queue.sweep()
    assert await target.bodies() == ["a"]


async def test_letters_on_their_way_are_kept_as_long_as_they_will_live(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    """Where no server comes back for days, Redis's own expiry must not be the end of them."""
    await exhaust(queue, "a")
    policy = target.as_dead_letter_queue(1, 10 * DAY)
    with crash_before("accept"):
        await queue.claim(dead_letter=policy)
    outbox = keys_by_tag(client)[keys_of(queue.ref).tag]["outbox"]
    left = client.pttl(outbox)
    assert 10 * DAY - MINUTE < left < 11 * DAY


async def test_letters_to_two_targets_each_reach_their_own(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    """A crash leaves letters in the outbox, and the policy names another queue by then."""
    second = queue.named(f"{queue.ref.name}-second")
    for name, policy in (("a", target), ("b", second), ("c", target)):
        await exhaust(queue, name)
        with crash_before("accept"):
            await queue.claim(dead_letter=policy.as_dead_letter_queue(1))
    queue.advance(MINUTE)
    await queue.sweep()
    assert await target.bodies() == ["a", "c"]
    assert await second.bodies() == ["b"]


@pytest.mark.parametrize("step", ["read_outbox", "accept", "outbox_ack"])
async def test_outbox_messages_of_a_post_arrive_once_after_a_crash_at_any_step(
    queue: QueueUnderTest, target: QueueUnderTest, step: str
) -> None:
    message = with_note(new("a"), target)
    with crash_before(step):
        ids = await queue.post(message)
        await asyncio.sleep(0.1)  # what follows a post is begun before its answer
        assert len(await target.listed()) == (step == "outbox_ack")
    assert await queue.bodies() == ["a"]
    queue.advance(MINUTE + SECOND)
    await queue.at(await queue.stores.second()).sweep()
    ids += await queue.post(message)
    assert [json.loads(one.body)["id"] for one in await arrived(target, 2)] == ids


async def test_an_acknowledgement_behind_another_leaves_later_letters(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    """Two processes had read the same letters, and one has removed the first of them."""
    with crash_before("accept"):
        await exhaust(queue, "a", "b", "c")
        await queue.claim(dead_letter=target.as_dead_letter_queue(1))
    keys = keys_of(queue.ref)
    letters = client.lrange(keys.key("outbox"), 0, -1)
    assert len(letters) == 3
    outbox = queue.stores.messages._outbox  # type: ignore[attr-defined]
    assert await outbox.acknowledge(queue.ref, letters[:1]) == 2
    assert await outbox.acknowledge(queue.ref, letters[:2]) == 1
    assert client.lrange(keys.key("outbox"), 0, -1) == letters[2:]
    queue.advance(3 * SECOND)
    await queue.sweep()
    assert len(await target.listed()) == 1


async def test_an_outbox_message_on_its_way_lives_as_long_as_it_would_where_it_goes(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    """Also where all messages of the source end long before that."""
    with crash_before("accept"):
        await queue.post(with_note(new("a", ttl=MINUTE), target, ttl=DAY))
        ends = client.pexpiretime(keys_of(queue.ref).key("outbox"))
    assert ends >= queue.stores.clock.now_ms() + DAY - MINUTE


async def test_numbers_of_letters_are_kept_as_long_as_their_target_compares_them(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    """Else a clock that was set back makes a letter a repeat of an earlier one, and it is lost."""
    await target.arrived(await reject(queue, target, "a"), 1)
    state = keys_of(queue.ref).key("state")
    assert client.pexpiretime(state) >= client.pexpiretime(last_from(queue, target))


async def test_what_came_from_many_sources_is_forgotten_of_each_after_a_day(
    queue: QueueUnderTest, target: QueueUnderTest, client: Any
) -> None:
    """A drained pool's redriven messages are a source each: they must not pile up."""
    await target.arrived(await reject(queue, target, "a"), 1)
    client.expire(last_from(queue, target), 1_000)
    second = queue.named(f"{queue.ref.name}-second")
    await target.arrived(await reject(second, target, "b"), 1)
    assert client.ttl(last_from(queue, target)) <= 1_000
    assert client.ttl(last_from(second, target)) > 80_000


async def test_letters_of_a_queue_that_is_made_again_arrive(
    queue: QueueUnderTest, target: QueueUnderTest
) -> None:
    """Their numbers are not those of letters that left before, also where the clock goes back.

    That of a replica may, which takes over.
    """
    policy = target.as_dead_letter_queue(1)
    queue.advance(MINUTE)
    await exhaust(queue, "a")
    await queue.claim(dead_letter=policy)
    await queue.drop()
    queue.advance(-MINUTE)
    await exhaust(queue, "b")
    await queue.claim(dead_letter=policy)
    assert await target.bodies() == ["a", "b"]
