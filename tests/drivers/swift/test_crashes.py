"""Crashes between two writes: what a dead process left is finished or undone, never doubled."""

import asyncio
import threading

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, new, texts
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.faulty_proxy import FaultyProxy
from tests.drivers.swift.together import OpenSwift, together
from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.domain.models import QueueRef

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_is_late")]

QUICK = "&patience=0.6"
"""Who died repeats little: enough for what fails by itself on a busy machine."""

CRASHES = [
    pytest.param("POST", "{source}/m/", "before", id="before-it-is-marked"),
    pytest.param("POST", "{source}/m/", "after", id="when-it-is-marked"),
    pytest.param("PUT", "{target}/i/", "before", id="before-the-copy-can-be-found"),
    pytest.param("PUT", "{target}/m/", "before", id="before-the-copy"),
    pytest.param("PUT", "{target}/m/", "after", id="when-the-copy-is-there"),
    pytest.param("DELETE", "{source}/m/", "before", id="before-the-original-goes"),
    pytest.param("DELETE", "{source}/m/", "after", id="when-the-original-is-gone"),
    pytest.param("POST", "{target}/m/", "before", id="before-the-copy-is-shown"),
    pytest.param("POST", "{target}/m/", "after", id="when-the-copy-is-shown"),
]


async def exhausted(stores: Stores) -> tuple[QueueUnderTest, QueueUnderTest, str]:
    """A queue with one message that was claimed once, and the dead-letter queue of it."""
    source = a_queue(stores, "source")
    target = QueueUnderTest(stores, QueueRef(source.ref.project, "target"))
    await target.post("older")
    (message_id,) = await source.post("letter")
    await source.release(await source.claim_id())
    return source, target, message_id


def place(queue: QueueUnderTest) -> str:
    return rf"\.{queue.ref.name}"


@together(CRASHES)
async def test_a_letter_whose_move_was_cut_short_arrives(
    open_swift: OpenSwift, proxy: FaultyProxy, method: str, where: str, cut: str
) -> None:
    """In between the letter is in neither queue, or in one; at the end in exactly one."""
    source, target, message_id = await exhausted(await open_swift(proxy.url, options=QUICK))
    pattern = where.format(source=place(source), target=place(target))
    proxy.fault(method, pattern, times=50, cut=cut)
    policy = target.as_dead_letter_queue(1)
    with pytest.raises(Unavailable):
        await source.claim(dead_letter=policy)
    proxy.heal()
    after = await open_swift()  # another process, which knows nothing
    source, target = source.at(after), target.at(after)
    seen = [*await source.bodies(), *await target.bodies()]
    assert seen.count("letter") <= 1
    await source.sweep()
    claimed = await source.claim(dead_letter=policy)
    assert not claimed.messages
    letters = (await target.claim()).messages
    assert texts(letters) == ["older", "letter"]
    letter = letters[1]
    assert letter.id == message_id
    assert letter.origin is not None
    assert (letter.origin.source, letter.origin.claim_count) == ("source", 1)
    assert ids(await target.get(message_id)) == [message_id]
    assert not await source.get(message_id)
    await target.delete(message_id)
    assert await source.bodies() == []
    assert await target.bodies() == ["older"]
    await source.sweep()
    assert await target.bodies() == ["older"]


@together(CRASHES)
async def test_what_a_client_was_moving_is_in_one_queue(
    open_swift: OpenSwift, proxy: FaultyProxy, method: str, where: str, cut: str
) -> None:
    """It stays where it was, or has arrived; the client was told nothing, and asks again."""
    before = await open_swift(proxy.url, options=QUICK)
    source = a_queue(before, "source")
    target = QueueUnderTest(before, QueueRef(source.ref.project, "target"))
    await target.post("older")
    (message_id,) = await source.post("moving")
    pattern = where.format(source=place(source), target=place(target))
    proxy.fault(method, pattern, times=50, cut=cut)
    with pytest.raises(Unavailable):
        await source.move(target, message_id)
    proxy.heal()
    after = await open_swift()
    source, target = source.at(after), target.at(after)
    assert [*await source.bodies(), *await target.bodies()].count("moving") <= 1
    swept = await source.sweep()
    there = await source.bodies() == []
    assert there or not any(step.moved for step in swept)
    assert await target.bodies() == (["older", "moving"] if there else ["older"])
    await source.move(target, message_id)
    assert [await each.bodies() for each in (source, target)] == [[], ["older", "moving"]]
    assert ids(await target.get(message_id)) == [message_id]


KEYED = [
    pytest.param("PUT", "/l/tail", "after", 0, id="when-the-intent-is-there"),
    pytest.param("PUT", "/m/0", "before", 1, id="after-one-message"),
    pytest.param("PUT", "/k/", "before", 0, id="before-a-key"),
    pytest.param("POST", "/l/tail", "before", 0, id="before-the-intent-is-done"),
]


@together(KEYED)
async def test_a_post_with_keys_that_was_cut_short_is_all_or_none(  # noqa: PLR0917 - fixtures
    open_swift: OpenSwift, proxy: FaultyProxy, method: str, where: str, cut: str, skip: int
) -> None:
    """The process is gone before it could undo anything; the retry stores each message once."""
    crashed = await open_swift(proxy.url, options=QUICK)
    queue = a_queue(crashed)
    await queue.post("older")
    batch = [new("a", key="a"), new("b", key="b")]
    proxy.fault(method, where, times=50, skip=skip, cut=cut)
    proxy.fault("DELETE", ".", times=50, cut="before")
    with pytest.raises(Unavailable):
        await queue.post(*batch, batch_key="batch")
    proxy.heal()
    queue = queue.at(await open_swift())
    retried = await queue.post(*batch, batch_key="batch")
    assert await queue.bodies() == ["older", "a", "b"]
    again = await queue.post_all(batch, batch_key="batch")
    assert [answer.id for answer in again] == retried
    assert all(answer.duplicate for answer in again)


ADOPTED = [
    pytest.param("/i/", "before", 0, id="before-any-can-be-found"),
    pytest.param("/m/0", "before", 1, id="when-one-of-two-is-there"),
    pytest.param("/m/0", "after", 1, id="when-both-are-there"),
    pytest.param("/k/a", "before", 0, id="before-the-number-is-known"),
    pytest.param("/k/a", "after", 0, id="when-the-number-is-known"),
]


@together(ADOPTED)
async def test_taking_in_that_was_cut_short_is_all_or_none(
    open_swift: OpenSwift, proxy: FaultyProxy, where: str, cut: str, skip: int
) -> None:
    """The drain that comes again with the same number brings each message once."""
    crashed = await open_swift(proxy.url, options=QUICK)
    queue, other = a_queue(crashed), a_queue(crashed, "other")
    await queue.post("older")
    await other.post("a", "b")
    messages = await other.listed()
    proxy.fault("PUT", where, times=50, skip=skip, cut=cut)
    proxy.fault("DELETE", ".", times=50, cut="before")
    with pytest.raises(Unavailable):
        await crashed.messages.import_messages(queue.ref, messages, source="pool", number=1)
    proxy.heal()
    healthy = await open_swift()
    queue = queue.at(healthy)
    for _ in range(2):
        await healthy.messages.import_messages(queue.ref, messages, source="pool", number=1)
    assert await queue.bodies() == ["older", "a", "b"]
    claimed = (await queue.claim()).messages
    assert [one.id for one in claimed[1:]] == [one.id for one in messages]


async def test_a_claim_whose_renewal_was_cut_short_lives_as_long_as_its_leases(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """Either the message is held by the claim, or it is free."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    await queue.post("a")
    claim_id = await queue.claim_id()
    proxy.fault("POST", "/c/", times=50, cut="before")
    with pytest.raises(Unavailable):
        await queue.renew(claim_id, ttl=HOUR)
    queue = queue.at(await open_swift())
    queue.advance(11 * MINUTE)
    assert texts((await queue.claim()).messages) == ["a"]


async def test_nothing_of_a_post_that_was_cut_short_is_claimed(
    open_swift: OpenSwift, proxy: FaultyProxy
) -> None:
    """A claim that comes before the retry undoes it, so that the retry doubles nothing."""
    queue = a_queue(await open_swift(proxy.url, options=QUICK))
    batch = [new("a", key="a"), new("b", key="b")]
    proxy.fault("PUT", "/m/0", times=50, skip=1, cut="before")
    proxy.fault("DELETE", ".", times=50, cut="before")
    with pytest.raises(Unavailable):
        await queue.post(*batch)
    proxy.heal()
    queue = queue.at(await open_swift())
    assert (await queue.claim()).claim_id is None
    await queue.post(*batch)
    assert await queue.bodies() == ["a", "b"]


@pytest.mark.parametrize("claims", [None, ()])
async def test_a_deletion_by_id_first_finishes_a_post_that_was_cut_short(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, claims: tuple[str, ...] | None
) -> None:
    """All of the batch is there, and readers see it when a lease is over.

    A deletion that left the post open would let the next claim take the batch for one that was
    never completed, and undo what is left of it.
    """
    crashed = a_queue(await open_swift(proxy.url, coordination_url=locks, options=QUICK))
    batch = [new("a", key="a"), new("b", key="b")]
    proxy.fault("POST", "/l/tail", times=50, cut="before")
    with pytest.raises(Unavailable):
        await crashed.post(*batch)
    queue = crashed.at(await open_swift(coordination_url=locks))
    assert await queue.bodies() == []
    queue.advance(65_000)
    a, b = await queue.listed()
    assert not await queue.delete(a.id, claims=claims)
    assert texts((await queue.claim()).messages) == ["b"]
    again = await queue.post_all(batch)
    assert [(one.id, one.duplicate) for one in again] == [(a.id, True), (b.id, True)]
    assert await queue.bodies() == ["b"]


async def test_an_edit_first_undoes_a_post_that_was_cut_short(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str
) -> None:
    """One of the batch is there: what was edited would be undone with it, by the next claim."""
    crashed = a_queue(await open_swift(proxy.url, coordination_url=locks, options=QUICK))
    batch = [new("a", key="a", delay=5 * MINUTE), new("b", key="b", delay=5 * MINUTE)]
    proxy.fault("PUT", "/m/0", times=50, skip=1, cut="before")
    proxy.fault("DELETE", ".", times=50, cut="before")
    with pytest.raises(Unavailable):
        await crashed.post(*batch)
    queue = crashed.at(await open_swift(coordination_url=locks))
    queue.advance(65_000)
    (part,) = await queue.listed()
    with pytest.raises(NotFound):
        await queue.edit(part.id, "other")
    await queue.post(*batch)
    assert await queue.bodies() == ["a", "b"]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_reader_does_not_pass_a_batch_that_is_being_written(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, shared: bool
) -> None:
    """The last message of a batch is there before the first one: readers stop before both."""
    url = locks if shared else None
    writer = a_queue(await open_swift(proxy.url, coordination_url=url))
    reader = writer.at(await open_swift(coordination_url=url)) if shared else writer
    await writer.post("older")
    async with proxy.paused("PUT", "/m/", writer.post("a", "b", "c")) as posting:
        await asyncio.sleep(0.5)  # the other two are being written meanwhile
        page = await reader.page()
        assert texts(page.messages) == ["older"]
    await posting
    assert texts((await reader.page(after=page.marker)).messages) == ["a", "b", "c"]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_batch_that_begins_between_a_readers_look_and_its_listing_is_not_passed(
    open_swift: OpenSwift, proxy: FaultyProxy, locks: str, shared: bool
) -> None:
    url = locks if shared else None
    queue = a_queue(await open_swift(proxy.url, coordination_url=url))
    await queue.post("older")
    listing, first = threading.Event(), threading.Event()
    looked = proxy.fault("GET", r"^/[^/]+\.queue\.[^/]+$", pause=listing)
    reading = asyncio.create_task(queue.page())
    assert await asyncio.to_thread(looked.reached.wait, 10)
    begun = proxy.fault("PUT", "/m/", pause=first)
    posting = asyncio.create_task(queue.post("a", "b", "c"))
    assert await asyncio.to_thread(begun.reached.wait, 10)
    await asyncio.sleep(0.5)  # the other two are being written meanwhile
    listing.set()
    page = await reading
    assert texts(page.messages) == ["older"]
    first.set()
    await posting
    assert texts((await queue.page(after=page.marker)).messages) == ["a", "b", "c"]


async def test_restarts_do_not_drive_positions_away_from_the_clock(open_swift: OpenSwift) -> None:
    """Each goes on from the tail, which is written a minute ahead; that minute does not add up."""
    queue = a_queue(await open_swift())
    posted: list[str] = []
    for _ in range(4):
        posted += await queue.post("a")
        queue = queue.at(await open_swift())
    assert posted == sorted(posted)
    ahead = int(posted[-1][:16], 16) - queue.stores.clock.now_us()
    assert ahead < 61_000_000
    assert ids(await queue.listed()) == posted
