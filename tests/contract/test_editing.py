"""Editing a message while it is still delayed."""

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, texts
from zaqar_lite.domain.errors import Conflict, DueChanged, Invalid, NotFound
from zaqar_lite.domain.models import DelayMode

pytestmark = pytest.mark.anyio

HONOUR = DelayMode.HONOUR


async def test_the_body_changes_and_nothing_else(queue: QueueUnderTest) -> None:
    (message_id, _) = await queue.post("a", "b", delay=10 * MINUTE)
    before = await queue.get_one(message_id)
    queue.advance(MINUTE)
    edited = await queue.edit(message_id, "A")
    assert texts([edited]) == ["A"]
    after = await queue.get_one(message_id)
    for name in ("position", "ttl_ms", "created_at", "expires_at", "delay_expires_at"):
        assert getattr(edited, name) == getattr(after, name) == getattr(before, name)
    assert await queue.bodies() == ["A", "b"]


async def test_the_ttl_counts_from_the_edit(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", ttl=20 * MINUTE, delay=10 * MINUTE)
    queue.advance(5 * MINUTE)
    edited = await queue.edit(message_id, ttl=30 * MINUTE)
    assert edited.ttl_ms == 30 * MINUTE
    assert edited.expires_at == edited.now + 30 * MINUTE
    assert 5 * MINUTE <= edited.age_ms < 6 * MINUTE
    queue.advance(29 * MINUTE)
    await queue.sweep()  # the ttl that it was posted with is over
    assert await queue.bodies() == ["a"]
    queue.advance(2 * MINUTE)
    assert await queue.bodies() == []
    (message_id,) = await queue.post("b", ttl=HOUR, delay=10 * MINUTE)
    await queue.edit(message_id, ttl=15 * MINUTE)  # also where that is earlier
    queue.advance(16 * MINUTE)
    assert (await queue.claim(mode=HONOUR)).claim_id is None


async def test_the_delay_counts_from_the_edit(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", delay=10 * MINUTE)
    queue.advance(9 * MINUTE)
    edited = await queue.edit(message_id, delay=10 * MINUTE)
    assert edited.delay_expires_at == edited.now + 10 * MINUTE
    queue.advance(9 * MINUTE)
    assert (await queue.claim(mode=HONOUR)).claim_id is None
    await queue.sweep()
    assert await queue.counts() == (0, 1, 0)
    await queue.edit(message_id, "A", ttl=50 * MINUTE, delay=MINUTE)
    queue.advance(MINUTE)
    (claimed,) = (await queue.claim(mode=HONOUR)).messages
    assert (texts([claimed]), claimed.ttl_ms) == (["A"], 50 * MINUTE)


async def test_a_ttl_that_would_end_before_the_delay_is_refused(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", ttl=30 * MINUTE, delay=20 * MINUTE)
    before = await queue.get_one(message_id)
    for ttl, delay in ((10 * MINUTE, None), (None, 40 * MINUTE), (20 * MINUTE, 21 * MINUTE)):
        with pytest.raises(Invalid):
            await queue.edit(message_id, "A", ttl=ttl, delay=delay)
    after = await queue.get_one(message_id)
    for name in ("body", "expires_at", "delay_expires_at"):
        assert getattr(after, name) == getattr(before, name)
    await queue.edit(message_id, ttl=25 * MINUTE, delay=25 * MINUTE)


async def test_what_is_not_there_cannot_be_edited(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a", ttl=5 * MINUTE, delay=4 * MINUTE)
    for unknown in ("0" * 32, "", "x\ny"):
        with pytest.raises(NotFound):
            await queue.edit(unknown, "A")
    with pytest.raises(NotFound):
        await other.edit(message_id, "A")
    queue.advance(6 * MINUTE)
    with pytest.raises(NotFound):
        await queue.edit(message_id, "A")


async def test_a_ready_message_cannot_be_edited(queue: QueueUnderTest) -> None:
    (never_delayed,) = await queue.post("a")
    (due,) = await queue.post("b", delay=10 * MINUTE)
    queue.advance(10 * MINUTE)  # due in this millisecond, though nothing has swept
    for message_id in (never_delayed, due):
        with pytest.raises(Conflict):
            await queue.edit(message_id, "X", delay=10 * MINUTE)
    assert await queue.bodies() == ["a", "b"]
    assert await queue.counts() == (2, 0, 0)


async def test_a_message_that_was_handed_out_cannot_be_edited_any_more(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("a", delay=10 * MINUTE)
    await queue.release_delayed()
    with pytest.raises(Conflict):
        await queue.edit(message_id, "X")
    claimed = await queue.claim(mode=HONOUR)
    with pytest.raises(Conflict):
        await queue.edit(message_id, "X")
    await queue.release(claimed.claim_id or "")
    with pytest.raises(Conflict):
        await queue.edit(message_id, "X")
    assert await queue.bodies() == ["a"]


async def test_an_edit_of_what_somebody_has_moved_changes_nothing(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", delay=10 * MINUTE)
    seen = (await queue.get_one(message_id)).delay_expires_at
    assert seen is not None
    await queue.edit(message_id, delay=20 * MINUTE, if_due=seen)
    before = await queue.get_one(message_id)
    assert before.delay_expires_at is not None
    for wrong in (seen, before.delay_expires_at - 1000, before.delay_expires_at + 1000):
        with pytest.raises(DueChanged):
            await queue.edit(message_id, "A", ttl=HOUR, delay=MINUTE, if_due=wrong)
    after = await queue.get_one(message_id)
    for name in ("body", "expires_at", "delay_expires_at"):
        assert getattr(after, name) == getattr(before, name)
    await queue.edit(message_id, delay=0, if_due=before.delay_expires_at)
    with pytest.raises(Conflict):
        await queue.edit(message_id, delay=0, if_due=before.delay_expires_at)


async def test_a_message_that_was_moved_with_a_delay_is_edited_like_any_other(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a")
    await queue.move(other, message_id, delay=HOUR, ttl=2 * HOUR)
    moved = await other.get_one(message_id)
    edited = await other.edit(message_id, "A", ttl=40 * HOUR, delay=30 * HOUR)
    after = await other.get_one(message_id)
    for name in ("id", "origin", "ttl_ms", "expires_at", "delay_expires_at", "claim_count"):
        assert getattr(edited, name) == getattr(after, name), name
    assert (after.id, after.body, after.origin) == (message_id, b'"A"', moved.origin)
    assert (after.ttl_ms, after.expires_at) == (40 * HOUR, edited.now + 40 * HOUR)
    other.advance(35 * HOUR)
    await other.sweep()
    assert ids((await other.claim(mode=HONOUR)).messages) == [message_id]
