"""Copies of one posted message in other queues: each an entry of its own (FAN_OUT)."""

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, new, some, texts
from zaqar_lite.domain.errors import Conflict, LimitReached
from zaqar_lite.domain.models import Capability, DelayMode, QueueRef
from zaqar_lite.domain.posts import Copy

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _declared(queue: QueueUnderTest) -> None:
    queue.stores.need(Capability.FAN_OUT)


def to(queue: QueueUnderTest, *, ttl: int = HOUR, delay: int = 0, priority: int = 100) -> Copy:
    return Copy(queue.ref, ttl, delay, priority)


async def test_a_copy_is_an_entry_of_its_own(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    await queue.post(
        new("a", headers={"x": "y"}, copies=(to(other, ttl=5 * MINUTE),)), client="producer"
    )
    (original,), (copy,) = await queue.listed(), await other.listed()
    assert (copy.body, copy.headers, copy.client_id) == (
        original.body,
        original.headers,
        "producer",
    )
    assert (original.ttl_ms, copy.ttl_ms) == (HOUR, 5 * MINUTE)
    assert copy.origin is None
    queue.advance(6 * MINUTE)
    assert await other.bodies() == []
    assert await queue.bodies() == ["a"]


async def test_copies_keep_the_order_of_the_batch(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post(*[new(str(n), copies=(to(other),) if n % 2 else ()) for n in range(10)])
    assert await queue.bodies() == [str(n) for n in range(10)]
    assert await other.bodies() == [str(n) for n in range(1, 10, 2)]


async def test_each_queue_has_its_own_delay_and_priority(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    await queue.post(
        new("a", copies=(to(other, delay=10 * MINUTE),)),
        new("b", delay=10 * MINUTE, copies=(to(other, priority=200),)),
        new("c", copies=(to(other, priority=0),)),
    )
    assert texts((await queue.claim(mode=DelayMode.HONOUR, ttl=HOUR)).messages) == ["a", "c"]
    assert texts((await other.claim(mode=DelayMode.HONOUR, ttl=HOUR)).messages) == ["c", "b"]
    queue.advance(11 * MINUTE)
    assert texts((await other.claim(mode=DelayMode.HONOUR)).messages) == ["a"]


async def test_claims_counts_and_deletes_act_on_one_queue(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    third = queue.named(f"third-{queue.ref.name}")
    (message_id,) = await queue.post(new("a", copies=(to(other), to(third))))
    claim_id = await queue.claim_id()
    assert await other.counts() == await third.counts() == (1, 0, 0)
    await queue.delete(message_id, claims=[claim_id])
    assert [m.claim_count for m in (await other.claim()).messages] == [1]
    await other.purge()
    assert await queue.bodies() == await other.bodies() == []
    await queue.drop()
    queue.advance(20 * MINUTE)
    await queue.sweep()
    assert await third.bodies() == ["a"]
    assert texts((await third.pop()).messages) == ["a"]


async def test_the_body_is_edited_only_where_one_queue_holds_it(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post(new("a", delay=10 * MINUTE, copies=(to(other),)))
    with pytest.raises(Conflict):
        await queue.edit(message_id, "A")
    assert await queue.bodies() == await other.bodies() == ["a"]
    edited = await queue.edit(message_id, ttl=50 * MINUTE, delay=5 * MINUTE)
    assert edited.ttl_ms == 50 * MINUTE
    assert (await other.listed())[0].ttl_ms == HOUR
    await other.pop()
    await queue.edit(message_id, "A")
    assert await queue.bodies() == ["A"]


async def test_a_known_key_makes_no_copies(queue: QueueUnderTest, other: QueueUnderTest) -> None:
    for _ in range(2):
        await queue.post(new("a", key="k", copies=(to(other),)))
    await queue.post(new("b", copies=(to(other),)), batch_key="k")
    await queue.post(new("b", copies=(to(other),)), batch_key="k")
    assert await queue.bodies() == await other.bodies() == ["a", "b"]


async def test_letters_and_copies_of_one_message_that_meet_in_one_queue_are_two(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    third = queue.named(f"third-{queue.ref.name}")
    await queue.post(new("a", copies=(to(other), to(third))))
    await third.pop()
    for source in (queue, other):
        await source.release(await source.claim_id())
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(1))).moved == 1
    met = await other.listed()
    assert texts(met) == ["a", "a"]
    assert [letter.origin is None for letter in met] == [True, False]
    assert (await other.claim(dead_letter=third.as_dead_letter_queue(1))).moved == 2
    letters = await third.listed()
    assert [some(letter.origin).source for letter in letters] == [other.ref.name] * 2
    assert len({letter.id for letter in letters}) == 2
    claim_id = await third.claim_id(1)
    assert await third.counts() == (1, 0, 1)
    last = await third.claim_id(client="another")
    assert [letter.claim_id for letter in await third.listed()] == [claim_id, last]
    await third.delete(letters[0].id, claims=[claim_id])
    assert [letter.id for letter in await third.listed()] == [letters[1].id]
    assert await third.held(last) == ["a"]


async def test_copies_take_the_places_of_what_has_expired_however_much_it_is(
    open_stores: OpenStores, project: str
) -> None:
    """Also more than one step removes, for each of the queues that get copies."""
    stores = await open_stores(max_messages=1_500)
    queue, *others = (QueueUnderTest(stores, QueueRef(project, name)) for name in "abc")
    for other in others:
        await other.post(*[new("goes", ttl=5 * MINUTE)] * 1_500)
    with pytest.raises(LimitReached):
        await queue.post(new("refused", copies=tuple(map(to, others))))
    queue.advance(6 * MINUTE)
    await queue.post(*[new("comes", copies=tuple(map(to, others)))] * 400)
    for one in (queue, *others):
        assert await one.counts() == (400, 0, 0)


async def test_more_copies_than_one_step_makes(open_stores: OpenStores, project: str) -> None:
    """Each queue has its copies in order, and a body lives as long as any entry of it."""
    stores = await open_stores()
    queue, *others = (QueueUnderTest(stores, QueueRef(project, f"q{n}")) for n in range(41))
    wide = [new(str(n), copies=tuple(map(to, others[: 40 - n]))) for n in range(3)]
    ids = await queue.post(*wide)
    await queue.post(wide[0])
    assert texts(await queue.listed()) == ["0", "1", "2", "0"]
    await queue.delete(*ids)
    assert texts(await queue.listed()) == ["0"]
    for number, other in enumerate(others):
        kept = [text for text in "012" if number < 40 - int(text)]
        assert texts(await other.listed()) == [*kept, "0"]
