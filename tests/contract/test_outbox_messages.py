"""Outbox messages: stored with their messages in one step, in another queue of the same store."""

import json

import pytest
from msgspec.structs import replace

from tests.contract.conftest import OpenStores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, new, texts
from tests.waiting import until
from zaqar_lite.domain.errors import LimitReached
from zaqar_lite.domain.models import DelayMode, Message, QueueRef
from zaqar_lite.domain.posts import NewMessage, OutboxEntry

pytestmark = pytest.mark.anyio


def with_note(
    message: NewMessage, target: QueueUnderTest, *, ttl: int = HOUR, delay: int = 0
) -> NewMessage:
    """A message that brings its own text along, with its id."""
    body = b'{"id": "%s", "of": %s}' % (b"0" * 32, message.body)
    return replace(message, outbox=(OutboxEntry(target.ref, body, 8, ttl, delay),))


async def arrived(target: QueueUnderTest, count: int) -> list[Message]:
    """What came to a queue, once it is so many."""
    return await until(target.listed, lambda found: len(found) >= count)


def told(notes: list[Message]) -> dict[str, str]:
    """The text of a message by its id, as its outbox message tells them."""
    return {note["id"]: note["of"] for note in (json.loads(one.body) for one in notes)}


async def test_come_with_their_messages_and_tell_their_ids(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    posted = await queue.post(*(with_note(new(text), other) for text in "abc"), new("d"))
    assert await queue.bodies() == ["a", "b", "c", "d"]
    found = await arrived(other, 3)
    assert told(found) == dict(zip(posted, "abc", strict=False))
    claimed = await other.claim(limit=10)
    assert len(claimed.messages) == 3


async def test_have_a_ttl_and_a_delay_of_their_own(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post(with_note(new("a", ttl=HOUR), other, ttl=20 * MINUTE, delay=MINUTE))
    await arrived(other, 1)
    assert list((await other.claim(mode=DelayMode.HONOUR)).messages) == []
    other.advance(MINUTE)
    (claimed,) = (await other.claim(mode=DelayMode.HONOUR)).messages
    assert claimed.ttl_ms == 20 * MINUTE


async def test_a_duplicate_brings_nothing(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    for _ in range(2):
        await queue.post(with_note(new("a", key="k"), other), with_note(new("b"), other))
        await queue.post(with_note(new("c"), other), batch_key="all")
    found = await arrived(other, 4)
    assert sorted(told(found).values()) == ["a", "b", "b", "c"]


async def test_a_refused_post_brings_nothing(open_stores: OpenStores, project: str) -> None:
    stores = await open_stores(max_messages=2)
    queue, other = (QueueUnderTest(stores, QueueRef(project, name)) for name in "qr")
    with pytest.raises(LimitReached):
        await queue.post(*(with_note(new(text), other) for text in "abc"))
    assert await other.listed() == []


async def test_the_limit_of_their_queue_stops_nothing(
    open_stores: OpenStores, project: str
) -> None:
    stores = await open_stores(max_messages=2)
    queue, other = (QueueUnderTest(stores, QueueRef(project, name)) for name in "qr")
    await other.post("full", "full")
    await queue.post(with_note(new("a"), other))
    assert texts(await queue.listed()) == ["a"]
    assert len(await arrived(other, 3)) == 3


async def test_no_limit_stops_a_post_to_a_queue_of_the_server(
    open_stores: OpenStores, project: str
) -> None:
    """Many projects share one, and the first that fills it would stop the others."""
    stores = await open_stores(max_messages=2, max_idempotency_keys=2)
    own = QueueUnderTest(stores, QueueRef(project, "~new"))
    for count in (1, 4, 150):
        keyed = [new("a", key=f"{count}.{number}") for number in range(count)]
        await own.post(*keyed, batch_key=f"{count}")
    assert (await stores.messages.stats(own.ref)).total == 155
