"""Races over the public seam: several tasks, through several stores where the data are shared.

A pause planted between two steps of one driver is that driver's own test; see `pausing.py`.
"""

import asyncio
from collections import Counter

import pytest

from tests.contract.conftest import OpenStores
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, ids, new, some, texts
from zaqar_lite.domain.errors import Conflict, LimitReached, NotFound
from zaqar_lite.domain.models import Capability, Claimed, Message

pytestmark = pytest.mark.anyio


async def peers_of(queue: QueueUnderTest, count: int) -> list[QueueUnderTest]:
    return [queue.at(stores) for stores in await queue.stores.peers(count)]


async def test_no_message_has_two_holders(queue: QueueUnderTest) -> None:
    posted = await queue.post(*map(str, range(24)))
    peers = await peers_of(queue, 3)
    claims = await asyncio.gather(*[peer.claim(3) for peer in peers * 4])
    handed_out = Counter(message.id for claim in claims for message in claim.messages)
    assert max(handed_out.values()) == 1
    rest = await queue.claim(30)
    handed_out.update(ids(rest.messages))
    assert handed_out == Counter(posted)
    for claim in [claim for claim in claims if claim.claim_id is not None]:
        held = await queue.get_claim(some(claim.claim_id))
        assert sorted(ids(held.messages)) == sorted(ids(claim.messages))


async def test_racing_claims_leave_nothing_behind_while_there_is_enough(
    queue: QueueUnderTest,
) -> None:
    """The loser of a race looks on instead of answering less than there is."""
    await queue.post(*map(str, range(20)))
    peers = await peers_of(queue, 2)
    claims = await asyncio.gather(*[peer.claim(5) for peer in peers * 2])
    assert [len(claim.messages) for claim in claims] == [5, 5, 5, 5]


async def test_pops_and_claims_share_no_message(queue: QueueUnderTest) -> None:
    posted = await queue.post(*map(str, range(18)))
    peers = await peers_of(queue, 2)
    answers = await asyncio.gather(
        *[peer.pop(3) for peer in peers], *[peer.claim(3) for peer in peers]
    )
    answers = [*answers, await queue.claim(20)]
    found = Counter(message.id for answer in answers for message in answer.messages)
    assert found == Counter(posted)


async def test_a_marker_reader_misses_nothing_of_racing_writers(queue: QueueUnderTest) -> None:
    """A position may become visible only after every lower one of the queue is."""
    peers = await peers_of(queue, 3)
    writing = True

    async def write(writer: QueueUnderTest, name: str) -> list[str]:
        posted: list[str] = []
        for number in range(4):
            posted += await writer.post(f"{name}-{number}-a", f"{name}-{number}-b")
        return posted

    reader = asyncio.create_task(queue.followed(lambda: not writing))
    posted = await asyncio.gather(*[write(peer, str(n)) for n, peer in enumerate(peers)])
    writing = False
    seen = await reader
    assert Counter(ids(seen)) == Counter(message_id for part in posted for message_id in part)
    assert [m.position for m in seen] == sorted(m.position for m in seen)
    assert ids(seen) == ids(await queue.listed())


async def test_racing_posts_under_one_key_store_one_message(queue: QueueUnderTest) -> None:
    peers = await peers_of(queue, 3)
    answers = await asyncio.gather(*[peer.post_all([new("a", key="k")]) for peer in peers * 2])
    assert len({answer.id for (answer,) in answers}) == 1
    assert [answer.duplicate for (answer,) in answers].count(False) == 1
    assert await queue.bodies() == ["a"]


async def test_racing_posts_of_one_batch_store_it_once(queue: QueueUnderTest) -> None:
    peers = await peers_of(queue, 3)
    answers = await asyncio.gather(*[peer.post("a", "b", batch_key="k") for peer in peers * 2])
    assert len({tuple(answer) for answer in answers}) == 1
    assert await queue.bodies() == ["a", "b"]


async def test_an_edit_and_a_claim_happen_one_after_the_other(queue: QueueUnderTest) -> None:
    """Whoever comes first: a claim that hands out the old body excludes the edit."""
    peers = await peers_of(queue, 2)
    for number in range(4):
        (message_id,) = await queue.post("old", delay=10 * MINUTE)
        order = [
            peers[0].edit(message_id, "new"),
            peers[1].claim(1, exposing=True),
        ]
        if number % 2:
            order.reverse()
        answers = await asyncio.gather(*order, return_exceptions=True)
        (claim,) = [answer for answer in answers if isinstance(answer, Claimed)]
        (edited,) = [answer for answer in answers if not isinstance(answer, Claimed)]
        assert isinstance(edited, Message | Conflict)
        expected = "old" if isinstance(edited, Conflict) else "new"
        assert texts(claim.messages) == [expected]
        assert texts([await queue.get_one(message_id)]) == [expected]
        await queue.delete(message_id)


async def test_racing_edits_leave_one_whole_outcome(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a", delay=10 * MINUTE)
    peers = await peers_of(queue, 3)
    minutes = [20, 30, 40]
    await asyncio.gather(
        *[
            peer.edit(message_id, str(n), ttl=n * MINUTE)
            for n, peer in zip(minutes, peers, strict=True)
        ]
    )
    message = await queue.get_one(message_id)
    assert message.ttl_ms == int(texts([message])[0]) * MINUTE


async def test_a_release_and_a_claim_give_a_message_to_one(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    peers = await peers_of(queue, 2)
    for _ in range(4):
        claim_id = await queue.claim_id()
        answers = await asyncio.gather(
            peers[0].release(claim_id), peers[1].claim(), peers[0].claim(), peers[1].claim()
        )
        holders = [
            answer.claim_id
            for answer in answers
            if isinstance(answer, Claimed) and answer.claim_id is not None
        ]
        assert len(holders) <= 1
        holder = holders[0] if holders else await queue.claim_id()
        assert (await queue.get_one(message_id)).claim_id == holder
        await queue.release(holder)


async def test_a_delete_by_claim_and_a_release_agree(queue: QueueUnderTest) -> None:
    """Either the delete was first and the message is gone, or it was refused and is ready."""
    peers = await peers_of(queue, 2)
    for _ in range(4):
        (message_id,) = await queue.post("a")
        claim_id = await queue.claim_id()
        refused, _none = await asyncio.gather(
            peers[0].delete(message_id, claims=[claim_id]), peers[1].release(claim_id)
        )
        assert await queue.bodies() == (["a"] if refused else [])
        assert await queue.counts() == ((1, 0, 0) if refused else (0, 0, 0))
        await queue.delete(message_id)


async def test_a_renewal_at_the_lapse_and_a_claim_exclude_each_other(
    queue: QueueUnderTest,
) -> None:
    peers = await peers_of(queue, 2)
    for _ in range(3):
        (message_id,) = await queue.post("a")
        claim_id = await queue.claim_id(ttl=5 * MINUTE)
        queue.advance(5 * MINUTE)
        renewed, claimed = await asyncio.gather(
            peers[0].renew(claim_id, ttl=HOUR), peers[1].claim(), return_exceptions=True
        )
        assert isinstance(claimed, Claimed)
        assert isinstance(renewed, NotFound) == (claimed.claim_id is not None)
        await queue.delete(message_id)


async def test_an_exhausted_message_is_moved_once(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    posted = await queue.post(*"abcdef")
    await queue.release(await queue.claim_id())
    peers = await peers_of(queue, 3)
    policy = other.as_dead_letter_queue(1)
    answers = await asyncio.gather(*[peer.claim(3, dead_letter=policy) for peer in peers * 2])
    assert sum(answer.moved for answer in answers) == 6
    assert not any(answer.messages for answer in answers)
    assert sorted(ids(await other.listed())) == sorted(posted)
    assert await queue.bodies() == []


async def test_racing_posts_keep_to_the_limit(
    open_stores: OpenStores, queue: QueueUnderTest
) -> None:
    limited = queue.at(await open_stores(max_messages=5))
    answers = await asyncio.gather(
        *[peer.post("a", "b") for peer in (await peers_of(limited, 3)) * 2],
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(answer, LimitReached) for answer in refused)
    assert len(refused) == 4
    assert await limited.counts() == (4, 0, 0)


async def test_a_drop_races_with_posts_and_leaves_what_is_whole(queue: QueueUnderTest) -> None:
    """What was posted before the drop is gone; what is listed can be claimed."""
    peers = await peers_of(queue, 3)
    await queue.post("before")
    await asyncio.gather(
        *[peer.post(f"{n}-a", f"{n}-b") for n, peer in enumerate(peers[:2])], peers[2].drop()
    )
    bodies = await queue.bodies()
    assert "before" not in bodies
    if Capability.ATOMIC_BATCH in queue.stores.messages.capabilities:
        assert len(bodies) == 2 * len({body[0] for body in bodies})
    assert await queue.counts() == (len(bodies), 0, 0)
    assert sorted(texts((await queue.claim(20)).messages)) == sorted(bodies)
