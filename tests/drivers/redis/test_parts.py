"""Posts that are stored in parts: committed at once, visible at once, finished by whoever comes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, new
from tests.contract.test_outbox_messages import arrived, told, with_note
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.inspection import check_queue, keys_by_tag
from tests.drivers.redis.steps import crash_before, queues_on_every_node, watching
from tests.services import RedisCluster, RedisServer
from zaqar_lite.domain.errors import LimitReached, Unavailable
from zaqar_lite.domain.models import DelayMode
from zaqar_lite.domain.posts import Posted
from zaqar_lite.storage.redis.claiming import MAX_CLAIMED
from zaqar_lite.storage.redis.keys import keys_of
from zaqar_lite.storage.redis.posting import KEYS_PER_STEP, PART_SIZE
from zaqar_lite.storage.redis.router import Router

pytestmark = pytest.mark.anyio

MOST_AT_ONCE = PART_SIZE
"""The longest post that one step stores."""
LONG = 751
PARTS = -(-LONG // PART_SIZE)
LOOKS = -(-LONG // KEYS_PER_STEP)
Act = Callable[[QueueUnderTest], Awaitable[object]]


@pytest.fixture
async def other(own_redis: RedisServer, open_queue: Open, queue: QueueUnderTest) -> QueueUnderTest:
    """The same queue through another process."""
    return queue.at((await open_queue(f"{own_redis.url}?timeout=2")).stores)


@pytest.fixture
def calls() -> Iterator[Counter[str]]:
    """How often each script was called, by anybody."""
    found: Counter[str] = Counter()
    with watching(lambda called, _: found.update([called])):
        yield found


def is_under_way(client: Any, queue: QueueUnderTest) -> bool:
    return bool(client.exists(keys_of(queue.ref).key("staged")))


def check(client: Any, queue: QueueUnderTest) -> None:
    tag = keys_of(queue.ref).tag
    keys = keys_by_tag(client)[tag]
    assert "staged" not in keys
    assert not client.hexists(keys["state"], "part")
    check_queue(client, tag, keys, queue.stores.clock.offset_ms)


async def post_cut_short(queue: QueueUnderTest, count: int = LONG) -> list[str]:
    """A post of which the process ends when it is committed and nothing of it is stored."""
    with crash_before("publish"):
        return list(await queue.post(*[new("x", ttl=HOUR)] * count))


async def test_no_script_stores_more_than_a_part(
    queue: QueueUnderTest, calls: Counter[str]
) -> None:
    await queue.post(*["x"] * MOST_AT_ONCE)
    assert calls == {"post": 1}
    await queue.post(*[new("x", key=str(number)) for number in range(LONG)])
    # The messages, and their keys.
    assert calls == {"post": 2, "known": LOOKS, "publish": 2 * PARTS}


async def test_a_key_of_a_long_post_that_is_stored_after_the_look_is_found(
    queue: QueueUnderTest, other: QueueUnderTest, client: Any
) -> None:
    run, others = Router.run, [other.post(new("700", key="700"))]

    async def late(self: Router, operation: str, *args: Any, **options: Any) -> Any:
        if operation == "post" and others:
            await others.pop()
        return await run(self, operation, *args, **options)

    with patch.object(Router, "run", late):
        posted = await queue.post_all([new(str(n), key=str(n)) for n in range(LONG)])
    assert [number for number, one in enumerate(posted) if one.duplicate] == [700]
    assert await queue.counts() == (LONG, 0, 0)
    check(client, queue)


async def test_large_bodies_make_smaller_parts(queue: QueueUnderTest, calls: Counter[str]) -> None:
    posted = await queue.post(*["x" * 10_000] * LONG)
    assert calls["publish"] > PARTS
    assert ids(await queue.listed(limit=LONG)) == posted


async def see_all(queue: QueueUnderTest) -> None:
    assert await queue.counts() == (LONG, 0, 0)


async def list_all(queue: QueueUnderTest) -> None:
    assert len(await queue.listed(limit=LONG)) == LONG


async def claim_all(queue: QueueUnderTest) -> None:
    assert len((await queue.claim(500)).messages) == MAX_CLAIMED


async def pop_all(queue: QueueUnderTest) -> None:
    assert len((await queue.pop(500)).messages) == MAX_CLAIMED


async def post_more(queue: QueueUnderTest) -> None:
    (more,) = await queue.post("y")
    assert ids(await queue.listed(limit=LONG + 1))[-1] == more


async def post_more_with_outbox(queue: QueueUnderTest) -> None:
    await queue.post(with_note(new("y"), queue))
    await arrived(queue, LONG + 2)


@pytest.mark.parametrize(
    "act",
    [see_all, list_all, claim_all, pop_all, post_more, post_more_with_outbox, QueueUnderTest.sweep],
)
async def test_who_comes_after_a_crash_finds_all_of_it(
    queue: QueueUnderTest, other: QueueUnderTest, client: Any, act: Act
) -> None:
    posted = await post_cut_short(queue)
    assert is_under_way(client, queue)
    await act(other)
    check(client, queue)
    left = posted[MAX_CLAIMED:] if act is pop_all else posted
    assert sorted(ids(await queue.get(*posted))) == left


async def test_what_was_committed_is_found_by_its_id(
    queue: QueueUnderTest, other: QueueUnderTest, client: Any
) -> None:
    for act in ("get", "delete"):
        posted = await post_cut_short(queue)
        if act == "get":
            assert len(await other.get(posted[-1])) == 1
        else:
            assert not await other.delete(posted[-1])
            assert not await other.get(posted[-1])
        check(client, queue)


@pytest.mark.parametrize("how", ["purge", "drop"])
async def test_a_purge_or_drop_leaves_nothing_of_it(
    queue: QueueUnderTest, other: QueueUnderTest, client: Any, how: str
) -> None:
    await post_cut_short(queue)
    await (other.purge() if how == "purge" else other.drop())
    assert await queue.counts() == (0, 0, 0)
    await queue.post("new")
    assert await queue.bodies() == ["new"]
    check(client, queue)


async def test_a_post_that_was_not_committed_leaves_nothing(
    queue: QueueUnderTest, other: QueueUnderTest, client: Any
) -> None:
    messages = [new("x", key=str(number)) for number in range(LONG)]
    with crash_before("post"), pytest.raises(Unavailable):
        await queue.post(*messages)
    assert keys_of(queue.ref).tag not in keys_by_tag(client)
    assert len(await other.post(*messages)) == LONG


async def test_a_killed_redis_has_all_of_it_or_nothing(
    queue: QueueUnderTest, own_redis: RedisServer, client: Any
) -> None:
    posted = await post_cut_short(queue)
    own_redis.kill()
    await asyncio.to_thread(own_redis.start)
    await queue.sweep()
    assert await queue.counts() == (LONG, 0, 0)
    assert sorted(ids(await queue.get(*posted))) == posted
    check(client, queue)


async def test_nobody_waits_for_parts_that_are_lost(queue: QueueUnderTest, client: Any) -> None:
    await post_cut_short(queue)
    client.delete(keys_of(queue.ref).key("staged"))
    async with asyncio.timeout(5):
        await queue.post("a")
    assert await queue.bodies() == ["a"]


async def test_delays_keys_and_outbox_messages_come_with_their_parts(
    queue: QueueUnderTest, client: Any
) -> None:
    target = queue.named(f"{queue.ref.name}-notes")
    messages = [
        with_note(new(str(number), key=str(number), delay=MINUTE * (number % 2)), target)
        for number in range(LONG)
    ]
    messages[-1] = replace(messages[-1], delay_ms=0)
    posted = await queue.post(*messages)
    late = len(posted[1::2])
    assert await queue.counts() == (LONG - late, late, 0)
    assert ids((await queue.claim(2)).messages) == [posted[0], posted[2]]
    queue.advance(2 * MINUTE)
    assert ids((await queue.claim(2, mode=DelayMode.HONOUR)).messages) == [posted[1], posted[3]]
    assert await queue.post(*messages) == posted
    assert len(await arrived(target, LONG)) == LONG
    check(client, queue)


async def test_readers_never_see_a_part_of_it(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    """While long and short posts race, every count is a sum of whole posts, in order."""
    done = asyncio.Event()
    seen: list[str] = []

    async def read() -> None:
        after = None
        while not done.is_set():
            seen.extend(ids(await other.listed(limit=500, after=after)))
            after = int(seen[-1][:16], 16) if seen else None
            assert (await other.counts())[0] % LONG <= 20

    async def post_short() -> list[str]:
        return [one for _ in range(20) for one in await other.post("x")]

    reading = asyncio.create_task(read())
    posted = await asyncio.gather(
        queue.post(*["x"] * LONG),
        other.post(*["x"] * LONG),
        queue.post(*["x"] * LONG),
        post_short(),
    )
    done.set()
    await reading
    rest = ids(await other.listed(limit=500, after=int(seen[-1][:16], 16) if seen else None))
    assert seen + rest == sorted(one for batch in posted for one in batch)


async def test_posts_with_the_same_keys_race_and_one_of_them_stores(
    queue: QueueUnderTest, other: QueueUnderTest, client: Any
) -> None:
    messages = [new(str(number), key=str(number)) for number in range(LONG)]
    long, again, short = await asyncio.gather(
        queue.post_all(messages), other.post_all(messages), other.post_all(messages[-5:])
    )
    assert [one.id for one in long] == [one.id for one in again]
    assert [one.id for one in short] == [one.id for one in long[-5:]]
    assert await queue.counts() == (LONG, 0, 0)
    check(client, queue)


async def test_known_messages_of_a_long_post_are_answered_and_left_out(
    queue: QueueUnderTest, client: Any
) -> None:
    target = queue.named(f"{queue.ref.name}-notes")
    messages = [new(str(number), key=str(number)) for number in range(LONG)]
    messages[-1] = with_note(messages[-1], target)
    known = await queue.post(messages[700], messages[3])
    posted = await queue.post_all([*messages, messages[5]])
    assert [one.id for one in posted if one.duplicate] == [known[1], known[0], posted[5].id]
    assert await queue.bodies() == ["700", "3", *(str(n) for n in range(LONG) if n not in {3, 700})]
    (note,) = await arrived(target, 1)
    assert told([note]) == {posted[LONG - 1].id: str(LONG - 1)}
    assert await queue.post_all(messages) == [Posted(one.id, True) for one in posted[:-1]]
    check(client, queue)


async def test_a_long_post_that_finds_no_room_stores_nothing(
    queue: QueueUnderTest, open_queue: Open, own_redis: RedisServer
) -> None:
    queue = queue.at((await open_queue(f"{own_redis.url}?timeout=2", max_messages=LONG)).stores)
    await queue.post("y")
    with pytest.raises(LimitReached):
        await queue.post(*["x"] * LONG)
    assert await queue.bodies() == ["y"]


async def test_parts_stay_in_the_slot_of_their_queue(
    redis_cluster: RedisCluster, open_queue: Open
) -> None:
    for queue in queues_on_every_node(await open_queue(redis_cluster.url)):
        posted = await queue.post(*["x"] * LONG)
        assert ids(await queue.listed(limit=LONG)) == posted


async def test_parts_that_lost_their_state_do_not_come_with_another_post(
    queue: QueueUnderTest, client: Any
) -> None:
    """They would be stored at positions that the second post has not taken."""
    await post_cut_short(queue)
    client.delete(keys_of(queue.ref).key("state"))
    posted = await queue.post(*[new("y", ttl=HOUR)] * (MOST_AT_ONCE + 1))
    assert ids(await queue.listed(limit=LONG)) == posted
    check(client, queue)
