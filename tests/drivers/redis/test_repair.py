"""What earlier versions left behind: keys without a digest, tracks without leases of their own."""

from typing import Any

import pytest

from tests.contract.subject import (
    HOUR,
    MINUTE,
    SECOND,
    QueueUnderTest,
    ack,
    extend,
    fail,
    new,
)
from tests.drivers.redis.inspection import keys_by_tag
from tests.drivers.redis.test_letters import crash_before, swept
from zaqar_lite.domain.attempts import MAX_CLAIMS, Ended
from zaqar_lite.domain.posts import Posted
from zaqar_lite.domain.settlements import Outcome
from zaqar_lite.storage.redis.keys import keys_of

pytestmark = pytest.mark.anyio


async def test_a_key_that_was_stored_without_a_digest_matches_any_message(
    queue: QueueUnderTest, client: Any
) -> None:
    (first,) = await queue.post(new("a", key="one"))
    batch = await queue.post("b", "c", batch_key="all")
    for key, entry in client.hgetall(keys_of(queue.ref).key("keys")).items():
        client.hset(keys_of(queue.ref).key("keys"), key, entry[:6] + entry[23:])
    assert list(await queue.post_all([new("x", key="one")])) == [Posted(first, True)]
    assert await queue.post("y", batch_key="all") == batch
    assert await queue.bodies() == ["a", "b", "c"]


async def test_claims_that_are_deleted_with_their_messages_leave_nothing(
    queue: QueueUnderTest, client: Any
) -> None:
    await queue.post(*map(str, range(200)), ttl=HOUR)
    for _ in range(100):
        claimed = await queue.claim(2)
        for message in claimed.messages:
            await queue.delete(message.id, claims=[claimed.claim_id or ""])
    keys = keys_by_tag(client)[keys_of(queue.ref).tag]
    assert not {"claims", "leases", "held", "tracks", "messages"} & set(keys)


def make_old(client: Any, queue: QueueUnderTest) -> None:
    """Write the tracks of a queue as the version before single leases did."""
    key = keys_of(queue.ref).key("tracks")
    for position, track in client.hgetall(key).items():
        length = int.from_bytes(track[31:33], "big") - 32_768
        client.hset(key, position, track[:31] + length.to_bytes(2, "big") + track[50:])


async def test_a_claim_of_an_earlier_version_lives_on(queue: QueueUnderTest, client: Any) -> None:
    held, lapsing, acked, released = await queue.post(*"abcd")
    await queue.release(await queue.claim_id(4))
    claim_id = await queue.claim_id(3, ttl=5 * MINUTE)
    client.delete(keys_of(queue.ref).key("attempts"))
    make_old(client, queue)
    assert [m.id for m in (await queue.get_claim(claim_id)).messages] == [held, lapsing, acked]
    assert [m.claim_id for m in await queue.listed()] == [claim_id] * 3 + [None]
    make_old(client, queue)
    assert await queue.outcomes(claim_id, extend(held, HOUR), ack(acked), ack(released)) == [
        Outcome.DONE,
        Outcome.DONE,
        Outcome.LAPSED,
    ]
    queue.advance(6 * MINUTE)
    assert await queue.counts() == (2, 0, 1)
    claimed = (await queue.claim(details=True)).messages
    assert [(m.id, m.claim_count, m.failure_count) for m in claimed] == [
        (lapsing, 3, 1),
        (released, 2, 0),
    ]
    (attempt,) = claimed[0].attempts
    assert (attempt.number, attempt.outcome) == (2, Ended.LAPSED)
    assert abs(attempt.ended_at - attempt.claimed_at - 5 * MINUTE) < SECOND
    assert await queue.held(claim_id) == ["a"]


async def test_a_claim_of_an_earlier_version_lapses_without_being_read(
    queue: QueueUnderTest, client: Any
) -> None:
    await queue.post(*"ab")
    await queue.claim_id(ttl=5 * MINUTE)
    make_old(client, queue)
    queue.advance(6 * MINUTE)
    await swept(queue)
    assert [(m.claim_count, m.failure_count) for m in await queue.listed()] == [(1, 1)] * 2


async def test_letters_of_an_earlier_version_are_read_and_let_in(
    queue: QueueUnderTest, client: Any
) -> None:
    target = queue.named(f"{queue.ref.name}-dead")
    policy = target.as_dead_letter_queue(1)
    (here,) = await queue.post("here")
    await queue.release(await queue.claim_id())
    await queue.claim(dead_letter=policy)
    make_old(client, target)
    (coming,) = await queue.post("coming")
    await queue.release(await queue.claim_id())
    with crash_before("accept"):
        await queue.claim(dead_letter=policy)
    outbox = keys_of(queue.ref).key("outbox")
    letter = client.lindex(outbox, 0)
    at = 10 + int.from_bytes(letter[8:10], "big")
    size = int.from_bytes(letter[at : at + 2], "big")
    track, rest = letter[at + 2 : at + 2 + size], letter[at + 2 + size :]
    length = int.from_bytes(track[31:33], "big") - 32_768
    track = track[:31] + length.to_bytes(2, "big") + track[50:]
    record = rest[4 + int.from_bytes(rest[:4], "big") :]
    client.lset(outbox, 0, letter[:at] + len(track).to_bytes(2, "big") + track + record)
    queue.advance(MINUTE)
    await swept(queue)
    letters = await target.listed(details=True)
    assert [letter.id for letter in letters] == [here, coming]
    for each in letters:
        assert each.origin is not None
        assert (each.origin.source, each.origin.reason) == (queue.ref.name, MAX_CLAIMS)
        assert (each.claim_count, each.failure_count) == (1, 0)
        assert await target.get(each.id)
    claimed = await target.claim()
    assert await target.outcomes(claimed.claim_id or "", ack(here), fail(coming)) == [
        Outcome.DONE,
        Outcome.DONE,
    ]
    assert (await target.get_one(coming)).failure_count == 1
