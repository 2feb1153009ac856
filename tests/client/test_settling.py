"""Settling single messages of a claim, against a real server."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.conftest import MovableServer
from tests.client.requests import counted
from tests.proxy import OldServer
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    BadRequest,
    ClaimLost,
    Client,
    Message,
    NoDeadLetters,
    Settlement,
    Unsupported,
)

pytestmark = pytest.mark.anyio


def shown(client: Client, queue: str, message: Message) -> Message:
    return client.get_message(queue, message.id, details=True)


def test_a_message_is_given_back_with_its_reason_and_the_done_ones_go_along(
    client: Client, queue: str
) -> None:
    client.post_batch(queue, ["a", "b", "c"])
    sent = counted(client)
    with client.claim(queue) as claim:
        for message in claim:
            if message.body == "b":
                claim.release(
                    message, delay=600, failed=True, reason="http_503", detail="upstream is down"
                )
                assert client.stats(queue).total == 2  # "a" is deleted already
                message_b = message
    assert [one.partition(" ")[0] for one in sent] == ["POST", "POST", "GET", "DELETE"]
    stats = client.stats(queue)
    assert (stats.total, stats.claimed, stats.delayed) == (1, 0, 1)
    found = shown(client, queue, message_b)
    assert (found.claim_count, found.failure_count) == (1, 1)
    assert found.parked_until is not None
    assert found.attempts is not None
    (attempt,) = found.attempts
    assert (attempt.number, attempt.outcome, attempt.delay) == (1, "failed", 600)
    assert (attempt.reason, attempt.detail) == ("http_503", "upstream is down")
    assert attempt.client_id == client.client_id.replace("-", "")
    assert attempt.claimed_at is not None
    assert attempt.ended_at is not None


def test_a_dead_letter_says_why(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_dead_letter_queue": f"{queue}-dead"})
    client.post_batch(queue, [1, 2])
    with client.claim(queue) as claim:
        for message in claim:
            if message.body == 1:
                claim.dead(message, reason="bad_format", detail="line 3")
                claim.dead(message)  # it is gone: settled
    (letter,) = client.list_dead_letters(f"{queue}-dead")
    assert letter.dead_letter is not None
    assert (letter.dead_letter.source, letter.dead_letter.reason) == (queue, "bad_format")
    assert letter.attempts is not None
    assert [(one.outcome, one.detail) for one in letter.attempts] == [("dead", "line 3")]
    assert client.stats(queue).total == 0


def test_one_message_is_held_for_longer(movable: MovableServer, moving: Client, queue: str) -> None:
    moving.post_batch(queue, [1, 2])
    with moving.claim(queue, ttl=60, renew=False) as claim:
        first, second = claim.messages
        claim.extend(first, 600)
        movable.advance(61)
        with moving.claim(queue) as another:
            assert [message.id for message in another.messages] == [second.id]
            with pytest.raises(ClaimLost):
                claim.release(second, failed=True)
            another.done(second)
        claim.release(second)  # it is gone: settled
        claim.done(first)
    assert moving.stats(queue).total == 0


def test_results_say_what_was_not_done(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2])
    with client.claim(queue, limit=1) as mine, client.claim(queue) as theirs:
        (message,) = mine.messages
        held, dead = mine.settle(
            Settlement.release(theirs.messages[0]), Settlement.dead(message, reason="x")
        )
        assert (held.status, held.outcome) == (403, "held")
        assert (dead.status, dead.outcome) == (409, "no_target")
        assert not held.done
        with pytest.raises(ClaimLost):
            held.check()
        with pytest.raises(BadRequest):
            mine.release(message, delay=10**9)
        with pytest.raises(BadRequest, match="128"):
            mine.release(message, reason="x" * 129)


def test_a_server_that_cannot_settle_is_told_clearly_and_its_claims_end_as_ever(
    server: ServerProcess, queue: str
) -> None:
    with OldServer(server.url) as old, Client(old.url) as client:
        client.post_batch(queue, [1, 2, 3])
        with client.claim(queue) as claim:
            claim.done(claim.messages[0])
        assert [message.body for message in client.list_messages(queue)] == [2, 3]
        assert not client.settles
        with client.claim(queue) as claim:
            first, second = claim.messages
            with pytest.raises(Unsupported, match="settles no single messages"):
                claim.release(second, delay=5)
            with pytest.raises(Unsupported):
                claim.extend(second, 120)
            with pytest.raises(Unsupported):
                claim.dead(second)
            claim.done(first)
        settling = [one for one in old.seen if "/settle" in one]
        assert len(settling) == 4  # and at the second end it was not asked any more
        stats = client.stats(queue)
        assert (stats.total, stats.claimed) == (1, 0)


async def test_async_claims_settle_alike(async_client: AsyncClient, queue: str) -> None:
    dead = f"{queue}-dead"
    await async_client.create_queue(queue, {"_dead_letter_queue": dead})
    await async_client.post_batch(queue, range(6))
    async with async_client.claim(queue) as claim:
        done, failed, later, longer, bad, _ = claim.messages
        claim.done(done)
        sent = counted(async_client)
        await asyncio.gather(
            claim.release(failed, failed=True, reason="RuntimeError"),
            claim.release(later, delay=60),
            claim.extend(longer, 600),
            claim.dead(bad, reason="bad_format"),
        )
        assert len(sent) == 1
        results = await claim.settle(Settlement.release(later, delay=60))
        assert [result.status for result in results] == [204]
        claim.done(longer)
    stats = await async_client.stats(queue)
    assert (stats.total, stats.claimed, stats.delayed) == (3, 0, 1)
    (letter,) = [one async for one in async_client.list_dead_letters(dead)]
    assert letter.dead_letter is not None
    assert letter.dead_letter.reason == "bad_format"
    found = await async_client.get_message(queue, failed.id, details=True)
    assert found.attempts is not None
    assert [one.reason for one in found.attempts] == ["RuntimeError"]


async def test_async_settlements_that_fail_tell_who_asked(
    async_client: AsyncClient, queue: str
) -> None:
    await async_client.post_batch(queue, [1, 2])
    async with async_client.claim(queue) as claim:
        first, second = claim.messages
        outcomes = await asyncio.gather(
            claim.release(first), claim.dead(second), return_exceptions=True
        )
        assert outcomes[0] is None
        assert isinstance(outcomes[1], NoDeadLetters)
        releasing = asyncio.ensure_future(claim.release(second, delay=60))
        await asyncio.sleep(0)
        releasing.cancel()
    stats = await async_client.stats(queue)
    assert (stats.claimed, stats.delayed) == (0, 1)  # what was asked for was done before the end


@pytest.mark.parametrize("count", [1] * 10 + [10])
def test_renewals_race_with_threads_that_settle(client: Client, queue: str, count: int) -> None:
    """The claim is renewed without a pause while it ends, and is not taken for lost."""
    client.post_batch(queue, range(count))
    with client.claim(queue, renew_every=0.0005) as claim:
        with ThreadPoolExecutor(count) as threads:
            for one in threads.map(lambda m: claim.release(m, delay=600), claim.messages):
                assert one is None
        time.sleep(0.002)
        claim.check()
    assert client.stats(queue).delayed == count
