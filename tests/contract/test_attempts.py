"""Attempts: what a message remembers of its hand-outs, bounded, and shown only to who asks."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tests.contract.subject import (
    HOUR,
    MINUTE,
    SECOND,
    QueueUnderTest,
    bury,
    extend,
    fail,
    give_back,
    new,
)
from zaqar_lite.domain.attempts import (
    LAPSED,
    MAX_ATTEMPTS,
    MAX_ATTEMPTS_SIZE,
    MAX_DETAIL,
    MAX_REASON,
    Attempt,
    Ended,
)
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    Capability,
    RetryPolicy,
)
from zaqar_lite.domain.posts import Copy

pytestmark = pytest.mark.anyio

FAILED, RELEASED, DEAD = Ended.FAILED, Ended.RELEASED, Ended.DEAD


async def attempt(
    queue: QueueUnderTest,
    *,
    client: str = "consumer",
    reason: str | None = None,
    detail: str | None = None,
) -> None:
    """Claim the only message and fail it."""
    (message,) = (await queue.claim(client=client)).messages
    await queue.settle(message.claim_id or "", fail(message.id, reason=reason, detail=detail))


def numbers(attempts: Sequence[Attempt]) -> list[int]:
    return [each.number for each in attempts]


# What an attempt tells.


async def test_an_attempt_tells_when_and_how_it_ended(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    (message_id,) = await queue.post("a", ttl=10 * HOUR)
    before = await queue.get_one(message_id)
    queue.advance(3 * MINUTE)
    claim_id = await queue.claim_id(client="worker-7")
    queue.advance(4 * MINUTE)
    await queue.settle(claim_id, fail(message_id, MINUTE, reason="http_503", detail="no answer"))
    queue.advance(2 * MINUTE)
    shutdown = replace(give_back(message_id, MINUTE), reason="shutdown", detail="a version")
    await queue.settle(await queue.claim_id(), shutdown)
    queue.advance(2 * MINUTE)
    await queue.release(await queue.claim_id(client="worker-8"))
    await queue.release(await queue.claim_id(), delay=2 * MINUTE)
    queue.advance(3 * MINUTE)
    await queue.claim_id(ttl=5 * MINUTE, client="worker-9")
    queue.advance(20 * MINUTE)
    await queue.settle(
        await queue.claim_id(),
        bury(message_id, reason="malformed", detail="no id"),
        retries=RetryPolicy(other.as_dead_letter_queue()),
    )
    attempts = await other.attempts(message_id)
    assert [each._replace(claimed_at=0, ended_at=0) for each in attempts] == [
        Attempt(1, 0, 0, FAILED, MINUTE, "http_503", "no answer", "worker-7"),
        Attempt(2, 0, 0, RELEASED, MINUTE, "shutdown", "a version", "consumer"),
        Attempt(3, 0, 0, RELEASED, 0, None, None, "worker-8"),
        Attempt(4, 0, 0, RELEASED, 2 * MINUTE, None, None, "consumer"),
        Attempt(5, 0, 0, Ended.LAPSED, 0, LAPSED, None, "worker-9"),
        Attempt(6, 0, 0, DEAD, 0, "malformed", "no id", "consumer"),
    ]
    assert 3 * MINUTE <= attempts[0].claimed_at - before.created_at < 4 * MINUTE
    assert 4 * MINUTE <= attempts[0].ended_at - attempts[0].claimed_at < 5 * MINUTE
    # A lapse ended when its lease did, however late somebody looked.
    assert abs(attempts[4].ended_at - attempts[4].claimed_at - 5 * MINUTE) < SECOND
    instants = [instant for each in attempts for instant in (each.claimed_at, each.ended_at)]
    assert instants == sorted(instants)


async def test_a_renewed_and_extended_lease_is_one_attempt(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    claim_id = await queue.claim_id(ttl=5 * MINUTE)
    queue.advance(4 * MINUTE)
    await queue.renew(claim_id, ttl=5 * MINUTE)
    queue.advance(4 * MINUTE)
    await queue.sweep()
    await queue.settle(claim_id, extend(message_id, 5 * MINUTE))
    queue.advance(4 * MINUTE)
    await queue.sweep()
    assert not await queue.attempts(message_id)
    assert (await queue.get_one(message_id)).failure_count == 0
    await queue.settle(claim_id, fail(message_id))
    (attempt,) = await queue.attempts(message_id)
    assert 12 * MINUTE <= attempt.ended_at - attempt.claimed_at < 13 * MINUTE


async def test_attempts_are_shown_only_to_who_asks_and_only_those_that_have_ended(
    queue: QueueUnderTest,
) -> None:
    (message_id,) = await queue.post("a", ttl=10 * HOUR)
    assert not await queue.attempts(message_id)
    for count in range(1, 4):
        (message,) = (await queue.claim(details=True)).messages
        assert message.claim_count == count
        ended = list(range(1, count))
        assert numbers(message.attempts) == ended
        assert numbers(await queue.attempts(message_id)) == ended
        await queue.release(message.claim_id or "")
        assert numbers(await queue.attempts(message_id)) == list(range(1, count + 1))
    assert not (await queue.get_one(message_id)).attempts
    assert not (await queue.listed())[0].attempts
    claimed = await queue.claim()
    assert not claimed.messages[0].attempts
    assert not (await queue.get_claim(claimed.claim_id or "")).messages[0].attempts
    await queue.release(claimed.claim_id or "")
    assert not (await queue.pop()).messages[0].attempts


# Texts.

TEXTS = [
    "a\nb\tc\r\n",
    "\"'\\/{}[]:,;",
    "nul \x00 and \x1f and \x7f",
    "käse, 乾酪, сыр, جبن",
    "🧀" * 32,
    "\u2028\u2029\ufeff\uffff",
    "null",
    "0",
    "é" * 64,
    "x" * MAX_REASON,
]


async def test_texts_are_kept_as_they_are(queue: QueueUnderTest) -> None:
    message_ids = await queue.post(*map(str, range(len(TEXTS))))
    claimed = await queue.claim(len(TEXTS), client="wörker 🧀")
    await queue.settle(
        claimed.claim_id or "",
        *[
            fail(each, reason=text, detail=text * (MAX_DETAIL // 128))
            for each, text in zip(message_ids, TEXTS, strict=True)
        ],
    )
    for message_id, text in zip(message_ids, TEXTS, strict=True):
        (attempt,) = await queue.attempts(message_id)
        assert (attempt.reason, attempt.detail) == (text, text * (MAX_DETAIL // 128))
        assert attempt.client_id == "wörker 🧀"


# How much is kept.


async def test_the_first_and_the_last_attempts_are_kept(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    for number in range(1, MAX_ATTEMPTS + 5):
        await attempt(queue, client=f"worker-{number}", reason=f"reason-{number}")
    attempts = await queue.attempts(message_id)
    kept = [1, *range(6, MAX_ATTEMPTS + 5)]
    assert len(kept) == MAX_ATTEMPTS
    assert numbers(attempts) == kept
    assert [each.reason for each in attempts] == [f"reason-{number}" for number in kept]
    assert [each.client_id for each in attempts] == [f"worker-{number}" for number in kept]
    message = await queue.get_one(message_id)
    assert (message.claim_count, message.failure_count) == (MAX_ATTEMPTS + 4, MAX_ATTEMPTS + 4)


async def test_what_is_kept_is_bounded_in_bytes(queue: QueueUnderTest) -> None:
    (message_id,) = await queue.post("a")
    # In UTF-8 a letter of these takes two bytes and a sign four.
    reason, detail = "é" * (MAX_REASON // 2), "🧀" * (MAX_DETAIL // 4)
    expected: list[int] = []
    for number in range(1, 13):
        claim_id = await queue.claim_id()
        await queue.settle(claim_id, fail(message_id, reason=reason, detail=detail))
        expected.append(number)
        if len(expected) * (64 + MAX_REASON + MAX_DETAIL + len("consumer")) > MAX_ATTEMPTS_SIZE:
            del expected[1]
        attempts = await queue.attempts(message_id)
        assert numbers(attempts) == expected
        assert sum(each.size for each in attempts) <= MAX_ATTEMPTS_SIZE
    assert expected == [1, 7, 8, 9, 10, 11, 12]
    # Small ones fill up again what the large ones leave.
    for _ in range(MAX_ATTEMPTS - 1):
        await attempt(queue)
    assert numbers(await queue.attempts(message_id)) == [1, *range(13, 12 + MAX_ATTEMPTS)]


@pytest.mark.parametrize("client", [str(uuid4()), uuid4().hex], ids=["uuid", "hex"])
async def test_a_client_id_counts_as_it_is_written(queue: QueueUnderTest, client: str) -> None:
    """Stores may write a UUID in 16 bytes: what is kept is the same in all of them."""
    (message_id,) = await queue.post("a")
    detail = "d" * (MAX_ATTEMPTS_SIZE // MAX_ATTEMPTS + 1 - 64 - len(client))
    for _ in range(MAX_ATTEMPTS):
        await attempt(queue, client=client, detail=detail)
    assert numbers(await queue.attempts(message_id)) == [1, *range(3, MAX_ATTEMPTS + 1)]


# Who sees them, and how long.


async def test_attempts_are_shown_wherever_somebody_asks(queue: QueueUnderTest) -> None:
    (message_id, _) = await queue.post("a", "b")
    await queue.settle(await queue.claim_id(1), fail(message_id, reason="one"))
    (expected,) = await queue.attempts(message_id)
    assert expected.reason == "one"
    a, b = await queue.listed(details=True)
    assert (list(a.attempts), list(b.attempts)) == ([expected], [])
    claimed = await queue.claim(details=True)
    assert [list(message.attempts) for message in claimed.messages] == [[expected], []]
    claim = await queue.get_claim(claimed.claim_id or "", details=True)
    assert [list(message.attempts) for message in claim.messages] == [[expected], []]
    await queue.release(claim.id, delay=10 * MINUTE)
    assert [numbers(one.attempts) for one in await queue.listed(details=True)] == [[1, 2], [1]]
    queue.advance(11 * MINUTE)
    popped = await queue.pop(details=True)
    assert [numbers(message.attempts) for message in popped.messages] == [[1, 2], [1]]


async def test_attempts_stay_with_a_dead_letter_and_stay_bounded_over_queues(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    """Also with one that a claim moves, whose last hand-out was no failure."""
    third = queue.named(f"third-{queue.ref.name}")
    (message_id,) = await queue.post("a")
    for _ in range(9):
        await attempt(queue, reason="first")
    await queue.release(await queue.claim_id())
    assert (await queue.claim(dead_letter=other.as_dead_letter_queue(10))).moved == 1
    for _ in range(10):
        await attempt(other, reason="second")
    assert (await other.claim(dead_letter=third.as_dead_letter_queue(20))).moved == 1
    told = [(1, "first"), *((number, "first") for number in range(6, 10)), (10, None)]
    told += [(number, "second") for number in range(11, 21)]
    assert [(each.number, each.reason) for each in await third.attempts(message_id)] == told
    (letter,) = await third.listed(details=True)
    assert numbers(letter.attempts) == [number for number, _ in told]


async def test_each_copy_of_a_message_has_attempts_of_its_own(
    queue: QueueUnderTest, other: QueueUnderTest
) -> None:
    queue.stores.need(Capability.FAN_OUT)
    await queue.post(new("a", copies=(Copy(other.ref, HOUR, 0, DEFAULT_PRIORITY),)))
    await attempt(queue, reason="one")
    (copied,) = await other.listed(details=True)
    assert (list(copied.attempts), copied.failure_count) == ([], 0)
    (posted,) = await queue.listed(details=True)
    assert numbers(posted.attempts) == [1]
