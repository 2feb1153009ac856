"""Groups: listed in order by an index, in whatever state, and left with the message."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.subject import HOUR, MINUTE, SECOND, QueueUnderTest, bury, ids, new, texts
from zaqar_lite.domain.groups import GROUP_HEADER, MAX_GROUP
from zaqar_lite.domain.models import DelayMode, Message, RetryPolicy
from zaqar_lite.domain.posts import NewMessage

pytestmark = pytest.mark.anyio


def of(group: str, text: str = "a", *, ttl: int = HOUR, delay: int = 0) -> NewMessage:
    """A message of a group."""
    return new(text, ttl=ttl, delay=delay, headers={GROUP_HEADER: group, "other": "x"})


async def listed(queue: QueueUnderTest, group: str, **options: Any) -> Sequence[Message]:
    """All messages of a group, page by page."""
    return await queue.listed(limit=400, group=group, **options)


@pytest.mark.parametrize("size", [1, 999, 1_001])
async def test_a_group_is_listed_in_order_among_others(queue: QueueUnderTest, size: int) -> None:
    if size > 1 and queue.stores.case.name == "swift":
        size //= 25  # an object each
    await queue.post("before", of("other"))
    members = [of("mine", str(n), delay=MINUTE * (n % 2)) for n in range(size)]
    posted: list[str] = []
    for first in range(0, size, 300):
        posted += await queue.post(*members[first : first + 300])
        await queue.post("between", of("other"))
    mine = await listed(queue, "mine")
    assert ids(mine) == posted
    assert texts(mine) == [str(n) for n in range(size)]
    assert all(one.headers == {GROUP_HEADER: "mine", "other": "x"} for one in mine)
    middle = mine[size // 2]
    assert ids(await listed(queue, "mine", until=middle.position)) == posted[: size // 2 + 1]
    assert len(await listed(queue, "other")) == 1 + -(-size // 300)
    assert not await listed(queue, "nobody")


async def test_one_long_post_is_in_its_group(queue: QueueUnderTest) -> None:
    count = 1_001 if queue.stores.case.name != "swift" else 21
    posted = await queue.post(*(of("mine", str(n)) for n in range(count)))
    assert ids(await listed(queue, "mine")) == posted


async def test_states_are_left_out_of_a_group_as_of_a_queue(queue: QueueUnderTest) -> None:
    (held,) = await queue.post(of("g", "held"))
    await queue.claim()
    ready, late = await queue.post(of("g", "ready"), of("g", "late", delay=MINUTE))
    assert ids(await listed(queue, "g")) == [held, ready, late]
    assert ids(await listed(queue, "g", claimed=False)) == [ready, late]
    assert ids(await listed(queue, "g", delayed=False)) == [held, ready]
    assert ids(await listed(queue, "g", claimed=False, delayed=False)) == [ready]
    queue.advance(MINUTE)
    assert ids(await listed(queue, "g", delayed=False)) == [held, ready, late]


async def test_what_leaves_a_queue_leaves_its_group(queue: QueueUnderTest) -> None:
    popped, claimed, deleted, expired, waiting, kept = await queue.post(
        of("g", "popped"), of("g", "claimed"), of("g", "deleted"), of("g", "expired", ttl=MINUTE),
        of("g", "waiting", delay=MINUTE), of("g", "kept"),
    )  # fmt: skip
    assert ids((await queue.pop(1)).messages) == [popped]
    claim_id = await queue.claim_id(1)
    await queue.delete(claimed, claims=[claim_id])
    await queue.delete(deleted)
    await queue.delete(waiting)
    assert ids(await listed(queue, "g")) == [expired, kept]
    queue.advance(MINUTE + SECOND)
    assert ids(await listed(queue, "g")) == [kept]
    await queue.stores.messages.sweep(1_000)
    assert ids(await listed(queue, "g")) == [kept]
    await queue.stores.messages.purge(queue.ref)
    assert not await listed(queue, "g")
    (again,) = await queue.post(of("g", "again"))
    assert ids(await listed(queue, "g")) == [again]


async def test_a_message_stays_in_its_group_when_it_is_edited_or_moved(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Also as a dead letter, and redriven."""
    first, second = await queue.post(of("g", "old", delay=MINUTE), of("g", "b", delay=3 * MINUTE))
    await queue.edit(first, "new", delay=2 * MINUTE)
    assert texts(await listed(queue, "g")) == ["new", "b"]
    queue.advance(2 * MINUTE)
    (claimed,) = (await queue.claim(1, mode=DelayMode.HONOUR)).messages
    assert claimed.headers == {GROUP_HEADER: "g", "other": "x"}
    retries = RetryPolicy(other.as_dead_letter_queue())
    await queue.settle(claimed.claim_id or "", bury(first), retries=retries)
    assert ids(await listed(queue, "g")) == [second]
    assert ids(await listed(other, "g")) == [first]
    await other.move(queue, first)
    assert ids(await listed(queue, "g")) == [second, first]
    assert not await listed(other, "g")


async def test_names_of_groups_are_told_apart(queue: QueueUnderTest) -> None:
    names = [
        "a", "ab", "a\x00", "a\x00b", "ä", "\U0001f600", "*", "]", "x" * MAX_GROUP,
        "x" * (MAX_GROUP - 1), "\x7f", "a;b=c",
    ]  # fmt: skip
    posted = await queue.post(*(of(name) for name in names))
    for name, message_id in zip(names, posted, strict=True):
        found = await listed(queue, name)
        assert ids(found) == [message_id]
        assert found[0].headers == {GROUP_HEADER: name, "other": "x"}


@pytest.mark.parametrize("text", ["", "x" * (MAX_GROUP + 1), "ä" * MAX_GROUP])
async def test_a_header_that_is_no_group_is_a_header(queue: QueueUnderTest, text: str) -> None:
    await queue.post(of(text))
    assert [one.headers for one in await queue.listed()] == [{GROUP_HEADER: text, "other": "x"}]
    assert not await listed(queue, text)


async def test_a_group_costs_its_size(queue: QueueUnderTest) -> None:
    if queue.stores.case.name == "swift":
        pytest.skip("Swift lists the queue: 10,000 messages a request")
    await queue.post(of("g", "first"))
    for _ in range(4):
        await queue.post(*("other" for _ in range(1_000)))
    await queue.post(of("g", "last"))
    store = queue.stores.messages
    before = getattr(store, "examined", 0)
    assert len(await listed(queue, "g")) == 2
    assert getattr(store, "examined", 0) - before <= 10
