"""Claims as context managers, against a real server."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.client.conftest import BOTH, MovableServer
from tests.client.requests import Around, counted
from tests.proxy import Fault, Proxy, nth
from tests.server import ServerProcess
from tests.services.process import free_port
from tests.waiting import until
from zaqar_lite.client import (
    AsyncClient,
    Claim,
    ClaimLost,
    Client,
    RetryPolicy,
    Unreachable,
    ZaqarError,
)
from zaqar_lite.client.calls import Request, Response
from zaqar_lite.client.claims import BaseClaim

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def claiming(kind: str, url: str, queue: str, **options: Any) -> AsyncIterator[BaseClaim]:
    """A claim of either client."""
    if kind == "sync":
        with Client(url, project="tests") as client, client.claim(queue, **options) as claim:
            yield claim
    else:
        async with AsyncClient(url, project="tests") as other:
            async with other.claim(queue, **options) as claimed:
                yield claimed


def claimable(client: Client, queue: str) -> list[object]:
    held = client.create_claim(queue, limit=20)
    if held is None:
        return []
    client.release_claim(queue, held.id)
    return [message.body for message in held.messages]


def wait_until_lost(claim: Claim) -> None:
    """Wait until the renewal in the background has noticed."""
    for _ in range(1000):
        try:
            claim.check()
        except ClaimLost:
            return
        time.sleep(0.02)


def wait_until_it_renews_no_more() -> None:
    for renewing in threading.enumerate():  # it may have ended already
        if renewing.name == "zaqar-renew":
            renewing.join(20)
            assert not renewing.is_alive()


def take_all(claim: BaseClaim) -> None:
    assert len(claim) == 4
    assert [message.body for message in claim] == [1, 2, 3, 4]


def take_none(claim: BaseClaim) -> None:
    assert claim


def stop_at_two(claim: BaseClaim) -> None:
    for message in claim:
        if message.body == 2:
            break


def be_done_with_two_and_stop(claim: BaseClaim) -> None:
    for message in claim:
        claim.done(message)
        if message.body == 2:
            break


def skip_two(claim: BaseClaim) -> None:
    for message in claim:
        if message.body == 2:
            claim.skip(message)


def skip_what_was_done(claim: BaseClaim) -> None:
    claim.done(*claim.messages)
    claim.skip(claim.messages[1])


def fail_at_two(claim: BaseClaim) -> None:
    for message in claim:
        assert 1 / (2 - message.body)


@BOTH
@pytest.mark.parametrize(
    ("work", "left"),
    [
        (take_all, []),
        (take_none, [1, 2, 3, 4]),
        (stop_at_two, [2, 3, 4]),
        (be_done_with_two_and_stop, [3, 4]),
        (skip_two, [2]),
        (skip_what_was_done, [2]),
        (fail_at_two, [2, 3, 4]),
    ],
)
async def test_what_was_processed_is_deleted_and_the_rest_comes_back(
    client: Client, queue: str, kind: str, work: Callable[[BaseClaim], None], left: list[int]
) -> None:
    client.post_batch(queue, [1, 2, 3, 4])
    listening = signal.getsignal(signal.SIGTERM)
    fails = pytest.raises(ZeroDivisionError) if work is fail_at_two else contextlib.nullcontext()
    with fails:
        async with claiming(kind, client.url, queue) as claim:
            work(claim)
    assert signal.getsignal(signal.SIGTERM) is listening
    assert client.stats(queue).claimed == 0
    assert claimable(client, queue) == left


async def test_a_long_claim_can_delete_on_the_way(
    client: Client, async_client: AsyncClient, queue: str
) -> None:
    client.post_batch(queue, [1, 2, 3])
    with client.claim(queue) as claim:
        for message in claim:
            if message.body == 3:
                claim.delete_done()
                assert client.stats(queue).total == 1
        assert [message.body for message in claim] == []
    client.post_batch(queue, [1, 2, 3])
    async with async_client.claim(queue) as other:
        for message in other:
            if message.body == 3:
                await other.delete_done()
                assert client.stats(queue).total == 1


@BOTH
async def test_a_claim_is_renewed_in_the_background(
    movable: MovableServer, moving: Client, queue: str, kind: str
) -> None:
    moving.post(queue, "slow")
    async with claiming(kind, movable.url, queue, ttl=60, renew_every=0.05) as claim:
        assert claim.id is not None
        for _ in range(4):
            movable.advance(40)
            await until(partial(moving.get_claim, queue, claim.id), lambda held: held.age < 40)
        # 160 seconds have passed for the server on a claim of 60.
        assert claimable(moving, queue) == []
        assert [message.body for message in claim] == ["slow"]
    assert moving.stats(queue).total == 0


@BOTH
async def test_the_end_of_a_block_does_not_wait_for_a_renewal(
    server: ServerProcess, client: Client, queue: str, kind: str
) -> None:
    client.post(queue, 1)
    with Proxy(server.url, nth("PATCH", lambda _: True, Fault.HOLD)) as proxy:
        async with claiming(kind, proxy.url, queue, renew_every=0.01) as claim:
            assert len(list(claim)) == 1
            await until(proxy.held.is_set)
            begin = time.monotonic()
        assert time.monotonic() - begin < 20
    assert client.stats(queue).total == 0


def test_a_lost_claim_is_noticed_and_deletes_nothing(
    movable: MovableServer, moving: Client, queue: str
) -> None:
    moving.post_batch(queue, [1, 2])
    with pytest.raises(ClaimLost), moving.claim(queue, ttl=60, renew=False) as claim:  # noqa: PT012 - the whole block is the test
        for message in claim:
            if message.body == 2:
                movable.advance(61)
                assert moving.create_claim(queue) is not None
    assert moving.stats(queue).claimed == 2


def test_a_lost_claim_ends_the_loop(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2])
    seen: list[object] = []
    with pytest.raises(ClaimLost), client.claim(queue, ttl=60, renew_every=0.02) as claim:  # noqa: PT012 - the whole block is the test
        for message in claim:
            seen.append(message.body)
            assert claim.id is not None
            client.release_claim(queue, claim.id)
            wait_until_lost(claim)
    assert seen == [1]
    assert client.stats(queue).total == 2


def test_a_claim_that_is_not_renewed_in_time_hands_out_nothing_more(
    client: Client, queue: str
) -> None:
    """A renewal may wait for its answer for longer than the claim lasts."""
    client.post_batch(queue, [1, 2])
    with pytest.raises(ClaimLost, match="in time"), client.claim(queue, renew_every=60) as claim:  # noqa: PT012 - the whole block is the test
        for message in claim:
            assert message.body == 1
            claim._until = time.monotonic()
    assert claimable(client, queue) == [2]


@pytest.mark.parametrize("how", ["deleted by it", "deleted by id", "given back"])
def test_a_claim_whose_messages_are_all_settled_is_over_and_not_lost(
    client: Client, queue: str, how: str
) -> None:
    client.post_batch(queue, [1, 2])
    with client.claim(queue, renew_every=0.02) as claim:
        assert claim.id is not None
        if how == "deleted by it":
            claim.done(*claim.messages)
            claim.delete_done()
        elif how == "deleted by id":
            for message in claim:
                client.delete_message(queue, message.id, claim_id=claim.id)
        else:
            first, second = claim.messages
            claim.release(first)
            claim.release(second, delay=30)
        wait_until_it_renews_no_more()
        claim.check()
        with pytest.raises(ClaimLost):
            client.get_claim(queue, claim.id)
        sent = counted(client)
    assert len(sent) == (how == "deleted by id")  # of which the claim does not know


def test_what_others_deleted_after_the_claims_time_is_lost(
    movable: MovableServer, moving: Client, queue: str
) -> None:
    moving.post_batch(queue, [1, 2])
    with moving.claim(queue, ttl=60, renew_every=0.3) as claim:
        movable.advance(61)
        claim._until = time.monotonic()  # this process has slept through it too
        moving.delete_messages(queue, [one.id for one in claim.messages], force=True)
        wait_until_it_renews_no_more()
        with pytest.raises(ClaimLost):
            claim.check()


def test_a_loop_without_a_block_claims_and_ends_the_claim(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2, 3])
    assert [message.body for message in client.claim(queue, limit=2)] == [1, 2]
    for message in client.claim(queue):
        assert message.body == 3
        break
    assert claimable(client, queue) == [3]
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop is the test
        for message in client.claim(queue):
            assert 1 / (message.body - 3)
    assert claimable(client, queue) == [3]
    assert list(client.claim(queue)) != []
    assert list(client.claim(queue)) == []


async def test_an_async_loop_without_a_block_says_what_it_needs(
    async_client: AsyncClient, queue: str
) -> None:
    await async_client.post_batch(queue, [1, 2, 3])
    with pytest.raises(TypeError, match="async with"):
        for _ in async_client.claim(queue):
            pass
    assert [message.body async for message in async_client.claim(queue, limit=2)] == [1, 2]
    async for _ in async_client.claim(queue):
        break
    stats = await until(lambda: async_client.stats(queue), lambda found: not found.claimed)
    assert stats.total == 1


def test_a_claim_is_not_silently_empty_before_it_was_made(client: Client, queue: str) -> None:
    client.post(queue, 1)
    claim = client.claim(queue)
    for asked in (bool, len, lambda one: one.messages, lambda one: one.release("0" * 32)):
        with pytest.raises(TypeError, match="use `with"):
            asked(claim)
    with claim:
        assert len(claim) == 1
    with pytest.raises(RuntimeError, match="used once"), claim:
        pass
    with client.claim(f"{queue}-empty") as nothing, pytest.raises(TypeError, match="empty"):
        nothing.release("0" * 32)
    assert client.stats(queue).claimed == 0


def test_the_blocks_own_error_is_not_hidden_by_a_server_that_is_gone(queue: str) -> None:
    with ServerProcess("memory://") as server, Client(server.url) as client:
        client.post(queue, 1)
        with pytest.raises(ZeroDivisionError) as caught, client.claim(queue):  # noqa: PT012 - the whole block is the test
            server.kill()
            client._retries = type(client._retries)(attempts=1)
            raise ZeroDivisionError
        assert any("could not be ended" in note for note in caught.value.__notes__)
        with pytest.raises(Unreachable):
            client.ping()


class Pausing(Around):
    """A transport that keeps each answer back until it may go on."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.answered = asyncio.Event()
        self.go_on = asyncio.Event()

    async def send(self, base: str, request: Request) -> Response:
        answer: Response = await super().send(base, request)
        self.answered.set()
        await self.go_on.wait()
        return answer


async def test_a_cancellation_is_not_lost_to_an_error() -> None:
    failed = asyncio.Event()
    policy = RetryPolicy(attempts=2, base=0, on_retry=lambda _: failed.set())

    async def work(client: AsyncClient) -> None:
        while True:
            with contextlib.suppress(ZaqarError):
                async with client.claim("q"):
                    pass

    async with AsyncClient(f"http://127.0.0.1:{free_port()}", retries=policy) as client:
        task = asyncio.create_task(work(client))
        await failed.wait()
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled()


async def test_cancelling_when_the_server_has_already_claimed_gives_the_messages_back(
    async_client: AsyncClient, queue: str
) -> None:
    await async_client.post_batch(queue, [1, 2])
    async_client.transport = pausing = Pausing(async_client.transport)

    async def hold() -> None:
        async with async_client.claim(queue):
            pytest.fail("it was cancelled before")

    task = asyncio.create_task(hold())
    await pausing.answered.wait()
    task.cancel()
    await asyncio.sleep(0)
    pausing.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    stats = await async_client.stats(queue)
    assert (stats.total, stats.claimed) == (2, 0)
