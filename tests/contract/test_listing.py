"""Listing: order, pages by marker, filters, and ranges for several readers."""

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, texts
from zaqar_lite.domain.ids import Marker

pytestmark = pytest.mark.anyio


async def test_pages_follow_one_another_until_an_empty_one(queue: QueueUnderTest) -> None:
    empty = await queue.page()
    assert (list(empty.messages), empty.marker) == ([], None)
    await queue.post(*map(str, range(10)))
    marker: int | None = None
    sizes = []
    found: list[str] = []
    for _ in range(5):
        page = await queue.page(after=marker, limit=3)
        sizes.append(len(page.messages))
        found += texts(page.messages)
        marker = page.marker if page.marker is not None else marker
    assert sizes == [3, 3, 3, 1, 0]
    assert found == [str(n) for n in range(10)]


async def test_a_page_begins_after_the_marker_and_ends_with_until(queue: QueueUnderTest) -> None:
    await queue.post(*"abcde")
    positions = [message.position for message in await queue.listed()]
    page = await queue.page(after=positions[0], until=positions[3])
    assert texts(page.messages) == ["b", "c", "d"]
    assert not (await queue.page(after=positions[3], until=positions[3])).messages
    assert not (await queue.page(after=positions[4])).messages
    assert texts((await queue.page(until=positions[1])).messages) == ["a", "b"]


async def test_a_bare_message_id_is_a_marker_also_when_its_message_is_gone(
    queue: QueueUnderTest,
) -> None:
    message_ids = await queue.post(*"abcd")
    by_id = Marker(int(message_ids[1][:16], 16), message_ids[1])
    for left in (["a", "b"], ["a"]):
        assert texts((await queue.page(after=by_id)).messages) == ["c", "d"]
        assert texts((await queue.page(until=by_id)).messages) == left
        await queue.delete(message_ids[1])


async def test_a_letter_is_behind_the_markers_of_readers_of_its_new_queue(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """It is older than all in the target: its own position would hide it. Its id means the new."""
    (letter,) = await queue.post("letter")
    await other.post("first", "second")
    page = await other.page()
    assert texts(page.messages) == ["first", "second"]
    await queue.release(await queue.claim_id())
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 1
    assert ids((await other.page(after=page.marker)).messages) == [letter]
    await other.post("after")
    assert await other.bodies() == ["first", "second", "letter", "after"]
    marker = Marker(int(letter[:16], 16), letter)
    assert texts((await other.page(after=marker)).messages) == ["after"]


async def test_echo_off_leaves_out_what_the_client_posted(queue: QueueUnderTest) -> None:
    await queue.post("mine", client="me")
    await queue.post("yours", client="you")
    await queue.post("mine too", client="me")
    assert texts(await queue.listed(exclude="me")) == ["yours"]
    assert texts(await queue.listed(exclude="you")) == ["mine", "mine too"]
    assert texts(await queue.listed(exclude=None)) == ["mine", "yours", "mine too"]


async def test_claimed_and_delayed_messages_are_listed_only_when_included(
    queue: QueueUnderTest,
) -> None:
    """They are found by their ids all the same, and ranges of the queue hold them."""
    assert not await queue.cuts(4)
    await queue.post("claimed")
    claim_id = await queue.claim_id(ttl=HOUR)
    await queue.post("delayed", delay=10 * MINUTE)
    await queue.post("ready")
    assert texts(await queue.listed(claimed=False)) == ["delayed", "ready"]
    assert texts(await queue.listed(delayed=False)) == ["claimed", "ready"]
    listed = await queue.listed()
    assert texts(listed) == ["claimed", "delayed", "ready"]
    assert [message.claim_id for message in listed] == [claim_id, None, None]
    assert sorted(texts(await queue.get(*ids(listed), listed[0].id))) == texts(listed)
    assert await queue.cuts(3) == [message.position for message in listed]
    queue.advance(11 * MINUTE)
    assert texts(await queue.listed(claimed=False, delayed=False)) == ["delayed", "ready"]


async def test_an_id_that_is_none_of_the_queue_is_not_found(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post("a")
    (of_another,) = await other.post("b")
    no_ids = ["", "x", "0" * 32, "f" * 32, "../../x", "a\nb", "*", "0" * 31 + "G", "é", "\0"]
    for message_id in (of_another, *no_ids):
        assert not await queue.get(message_id)
        assert not await queue.delete(message_id)
    assert (await queue.bodies(), await other.bodies()) == (["a"], ["b"])


async def test_a_page_is_full_whatever_the_filters_leave_out(queue: QueueUnderTest) -> None:
    """Clients take a short page for the end; the limit counts what is shown."""
    await queue.post("claimed", client="other")
    await queue.claim()
    for number in range(5):
        await queue.post(f"mine-{number}", client="me")
        await queue.post(f"other-{number}", client="other")
    await queue.post("delayed", delay=HOUR, ttl=2 * HOUR)
    await queue.post("last", client="other")
    page = await queue.page(limit=3, exclude="me", claimed=False, delayed=False)
    assert texts(page.messages) == ["other-0", "other-1", "other-2"]
    page = await queue.page(after=page.marker, limit=3, exclude="me", claimed=False, delayed=False)
    assert texts(page.messages) == ["other-3", "other-4", "last"]


async def test_what_a_page_left_out_behind_its_last_message_is_on_the_next_one(
    queue: QueueUnderTest,
) -> None:
    await queue.post("ready")
    await queue.post("delayed", delay=10 * MINUTE, ttl=HOUR)
    page = await queue.page(delayed=False)
    assert texts(page.messages) == ["ready"]
    queue.advance(11 * MINUTE)
    assert texts((await queue.page(after=page.marker, delayed=False)).messages) == ["delayed"]


# Splitting a queue into ranges that readers can share.


@pytest.mark.parametrize("count", [1, 2, 5, 12, 50])
async def test_the_ranges_together_are_the_queue(queue: QueueUnderTest, count: int) -> None:
    posted = [str(n) for n in range(12)]
    await queue.post(*posted)
    cuts = await queue.cuts(count)
    assert 1 <= len(cuts) <= count
    assert cuts == sorted(set(cuts))
    assert cuts[-1] == (await queue.listed())[-1].position
    sizes, found = [], []
    for after, until in zip([None, *cuts], cuts, strict=False):
        page = await queue.page(after=after, until=until)
        sizes.append(len(page.messages))
        found += texts(page.messages)
    assert found == posted
    assert max(sizes) <= 2 * -(-12 // min(count, 12))
    assert min(sizes) >= 1


async def test_gaps_do_not_unbalance_the_ranges(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*map(str, range(20)))
    await queue.delete(*message_ids[:14])
    cuts = await queue.cuts(2)
    assert len(cuts) == 2
    first = await queue.page(until=cuts[0])
    assert 2 <= len(first.messages) <= 4
