"""Batches of any size that a post may have: nothing is lost where a driver works in chunks."""

import os
from collections.abc import Awaitable, Callable

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.stores import DriverCase
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, new, some
from zaqar_lite.domain.errors import KeyReused
from zaqar_lite.domain.limits import MAX_PAGE_BYTES, Limits
from zaqar_lite.domain.models import DeadLetter, DelayMode
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Outcome, Settlement

pytestmark = pytest.mark.anyio

MOST = Limits().max_messages_per_post
"""The most messages of a post, unless an operator allows more: 5,000."""
FITTING = (Limits().max_messages_post_size - len('{"messages":[]}') + 1) // len('{"body":1},')
"""The most messages that fit the largest post: 23,830."""
LARGEST = Limits().max_messages_post_size
"""Bytes of a large body; the envelope of a real post would be on top."""
BEFORE = MAX_PAGE_BYTES // LARGEST
"""How many of them reach the bound of a page."""
AT_ONCE = 500
"""What one claim or pop asks for here; a store may hand out fewer."""
ALL = "ZAQAR_TEST_ALL" in os.environ
SIZES = (999, 1_000, 1_001, 2_001, MOST, FITTING) if ALL else (1_000, 2_001, MOST)
"""Around the chunks of 1,000 and 2,000 in which drivers work."""


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest, case: DriverCase) -> int:
    """How many messages the batch has; less where each message is a request of its own."""
    wanted: int = request.param
    if wanted >= MOST and case.size_divisor > 1:
        pytest.skip(f"{case.name} would take minutes")
    if wanted >= MOST and case.name == "opendata-slatedb" and not ALL:
        pytest.skip("a minute; SQLite has the same batches over the same store: tests/run --all")
    return wanted // case.size_divisor


@pytest.fixture
async def queue(open_stores: OpenStores, queue: QueueUnderTest) -> QueueUnderTest:
    """A queue that may hold more messages than the largest batch has."""
    return queue.at(await open_stores(max_messages=10 * FITTING, max_idempotency_keys=10 * FITTING))


def batch(size: int, *, ttl: int = HOUR, delay: int = 0) -> list[NewMessage]:
    """The smallest messages that there are."""
    return [NewMessage(b"1", ttl, delay)] * size


async def claim_all(
    queue: QueueUnderTest, dead_letter: DeadLetter | None = None
) -> tuple[list[str], list[str]]:
    """Claim until nothing is left; answer the ids of the messages and of the claims."""
    found: list[str] = []
    claims: list[str] = []
    while True:
        claimed = await queue.claim(AT_ONCE, dead_letter=dead_letter, mode=DelayMode.HONOUR)
        found += ids(claimed.messages)
        if claimed.claim_id is not None:
            claims.append(claimed.claim_id)
        elif not claimed.moved:
            return found, claims


async def test_a_batch_stays_whole_through_all_its_life(
    queue: QueueUnderTest, other: QueueUnderTest, size: int
) -> None:
    """Listed, claimed, settled, claimed again, dead, moved back, and acknowledged in the end."""
    other = other.at(queue.stores)
    posted = await queue.post(*batch(size))
    assert len(set(posted)) == size
    assert await queue.counts() == (size, 0, 0)
    assert ids(await queue.listed(limit=AT_ONCE)) == posted
    assert sorted(ids(await queue.get(*posted))) == posted
    found, claims = await claim_all(queue)
    assert found == posted
    assert await queue.counts() == (0, 0, size)
    for claim_id in claims:
        held = ids((await queue.get_claim(claim_id)).messages)
        acts = [Settlement(one, Act.RELEASE, failed=True, reason="r") for one in held]
        assert set(await queue.outcomes(claim_id, *acts)) == {Outcome.DONE}
    assert await queue.counts() == (size, 0, 0)
    found, claims = await claim_all(queue)
    for claim_id in claims:
        await queue.release(claim_id)
    handed_out, _ = await claim_all(queue, other.as_dead_letter_queue(2))
    assert (found, handed_out) == (posted, [])
    assert await queue.counts() == (0, 0, 0)
    assert ids(await other.listed(limit=AT_ONCE)) == posted
    for first in range(0, size, AT_ONCE):
        part = posted[first : first + AT_ONCE]
        assert set(await other.move(queue, *part)) == {Outcome.DONE}
    assert await other.counts() == (0, 0, 0)
    await queue.arrived(posted, size)
    assert await queue.counts() == (size, 0, 0)
    found, claims = await claim_all(queue)
    assert sorted(found) == sorted(posted)
    assert not await queue.delete(*posted, claims=claims)
    assert await queue.counts() == (0, 0, 0)


async def test_keys_that_repeat_or_are_known_stand_for_one_message(
    queue: QueueUnderTest, size: int
) -> None:
    (known,) = await queue.post(new("0", key="key-0"))
    messages = [new(str(number // 2), key=f"key-{number // 2}") for number in range(size)]
    for _ in range(2):  # the second time all are known, as a batch
        posted = await queue.post(*messages, batch_key="batch")
        assert posted[:2] == [known, known]
        assert posted[::2][: size // 2] == posted[1::2]
    again = await queue.post_all(messages)
    assert [(answer.id, answer.duplicate) for answer in again] == [(one, True) for one in posted]
    assert (await queue.counts())[0] == len(set(posted)) == (size + 1) // 2


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_key_that_was_used_for_another_message_refuses_the_batch(
    queue: QueueUnderTest, size: int, is_known: bool
) -> None:
    messages = [new("x", key=f"key-{number}") for number in range(size)]
    if is_known:
        await queue.post(new("another", key=f"key-{size - 1}"))
        messages[0] = messages[1]
    else:
        messages[-1] = new("another", key="key-0")
    with pytest.raises(KeyReused) as refused:
        await queue.post(*messages, batch_key="batch")
    assert refused.value.index == size - 1
    assert await queue.bodies() == ["another"][: int(is_known)]
    assert await queue.post("other", batch_key="batch")  # the batch's key was not kept


async def pop_all(queue: QueueUnderTest, posted: list[str]) -> None:
    popped: list[str] = []
    while messages := (await queue.pop(AT_ONCE)).messages:
        popped += ids(messages)
    assert popped == posted


async def delete_all(queue: QueueUnderTest, posted: list[str]) -> None:
    assert not await queue.delete(*posted)


async def claim_some_and_purge(queue: QueueUnderTest, _: list[str]) -> None:
    await queue.claim(AT_ONCE)
    await queue.purge()


async def let_expire(queue: QueueUnderTest, _: list[str]) -> None:
    queue.advance(11 * MINUTE)


@pytest.mark.parametrize("end", [pop_all, delete_all, claim_some_and_purge, let_expire])
async def test_a_batch_goes_whole(
    queue: QueueUnderTest,
    size: int,
    end: Callable[[QueueUnderTest, list[str]], Awaitable[None]],
) -> None:
    takes_all = end in {pop_all, claim_some_and_purge}
    posted = await queue.post(*batch(size, ttl=10 * MINUTE))
    if not takes_all:
        await queue.post("stays")
    await end(queue, posted)
    assert not await queue.get(*posted)
    if takes_all:
        await queue.post("stays")
    assert await queue.bodies() == ["stays"]  # a list steps over what has expired
    assert await queue.counts() == (1, 0, 0)
    await queue.sweep()
    assert await queue.bodies() == ["stays"]
    assert await queue.counts() == (1, 0, 0)


async def test_a_batch_that_waits_comes_due_whole_and_can_be_changed_and_cancelled(
    queue: QueueUnderTest, size: int
) -> None:
    posted = await queue.post(*batch(size, delay=10 * MINUTE))
    assert await queue.counts() == (0, size, 0)
    queue.advance(11 * MINUTE)
    found, claims = await claim_all(queue)
    assert found == posted
    assert not await queue.delete(*posted, claims=claims)
    posted = await queue.post(*batch(size, delay=10 * MINUTE))
    await queue.edit(posted[0], "changed")
    assert not await queue.delete(*posted[1:])
    assert await queue.counts() == (0, 1, 0)
    queue.advance(11 * MINUTE)
    found, _ = await claim_all(queue)
    assert found == posted[:1]


async def test_a_batch_that_waits_is_exposed_whole(queue: QueueUnderTest, size: int) -> None:
    posted = await queue.post(*batch(size, delay=10 * MINUTE))
    exposed = 0
    while step := await queue.release_delayed(AT_ONCE):
        exposed += step
        if step < AT_ONCE:
            break
    assert exposed == size
    assert await queue.counts() == (size, 0, 0)
    assert ids(await queue.listed(limit=AT_ONCE)) == posted


async def test_a_page_a_claim_and_a_pop_end_with_so_many_bytes(
    queue: QueueUnderTest,
) -> None:
    """Each holds the messages that reach the bound, and the next one goes on behind them."""
    large = "x" * (LARGEST - len('""'))
    posted = [(await queue.post(large))[0] for _ in range(BEFORE + 8)]
    posted += await queue.post("small")
    first, rest = posted[:BEFORE], posted[BEFORE:]
    for claimed_too in (True, False):
        page = await queue.page(limit=AT_ONCE, claimed=claimed_too)
        assert ids(page.messages) == first
        assert ids((await queue.page(after=page.marker, limit=AT_ONCE)).messages) == rest
    claimed = await queue.claim(AT_ONCE)
    assert (ids(claimed.messages), claimed.more) == (first, True)
    assert ids((await queue.page(limit=AT_ONCE, claimed=False)).messages) == rest
    others = await queue.claim(AT_ONCE)
    assert ids(others.messages) == rest
    for one in (claimed, others):
        await queue.release(some(one.claim_id))
    popped = await queue.pop(AT_ONCE)
    assert (ids(popped.messages), popped.more) == (first, True)
    assert ids((await queue.pop(AT_ONCE)).messages) == rest
