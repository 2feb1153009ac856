"""Claims as context managers, against a real server."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tests.client.conftest import MovableServer
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    Claim,
    ClaimLost,
    Client,
    Unreachable,
)
from zaqar_lite.client.calls import Request, Response
from zaqar_lite.client.steps import Sleep
from zaqar_lite.client.transports import AsyncTransport

pytestmark = pytest.mark.anyio


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


def test_what_was_processed_is_deleted(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2, 3])
    with client.claim(queue) as claim:
        assert len(claim) == 3
        assert [message.body for message in claim] == [1, 2, 3]
    assert client.stats(queue).total == 0


def test_an_empty_claim_is_false_and_no_error(client: Client, queue: str) -> None:
    with client.claim(queue) as claim:
        assert not claim
        assert list(claim) == []
        assert claim.id is None


def test_the_message_in_hand_and_the_rest_come_back_when_the_block_raises(
    client: Client, queue: str
) -> None:
    client.post_batch(queue, [1, 2, 3, 4])
    with pytest.raises(ZeroDivisionError), client.claim(queue) as claim:  # noqa: PT012 - the whole block is the test
        for message in claim:
            assert 1 / (2 - message.body)
    assert claimable(client, queue) == [2, 3, 4]


def test_break_keeps_the_message_in_hand_unless_it_is_done(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2, 3, 4])
    with client.claim(queue) as claim:
        for message in claim:
            if message.body == 2:
                break
    assert claimable(client, queue) == [2, 3, 4]
    with client.claim(queue) as claim:
        for message in claim:
            claim.done(message)
            if message.body == 2:
                break
    assert claimable(client, queue) == [3, 4]


def test_skipped_messages_come_back(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2, 3])
    with client.claim(queue) as claim:
        for message in claim:
            if message.body == 2:
                claim.skip(message)
    assert claimable(client, queue) == [2]


def test_a_long_claim_can_delete_on_the_way(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2, 3])
    with client.claim(queue) as claim:
        for message in claim:
            if message.body == 3:
                claim.delete_done()
                assert client.stats(queue).total == 1
        assert [message.body for message in claim] == []


def test_a_claim_is_renewed_in_the_background(movable: MovableServer, queue: str) -> None:
    with Client(movable.url) as client:
        client.post(queue, "slow")
        renewed = threading.Event()
        with client.claim(queue, ttl=60, renew_every=0.05) as claim:
            assert claim.id is not None
            for _ in range(4):
                movable.advance(40)
                for _ in range(1000):
                    if client.get_claim(queue, claim.id).age < 40:
                        break
                    renewed.wait(0.02)
            # 160 seconds have passed for the server on a claim of 60.
            assert claimable(client, queue) == []
            assert [message.body for message in claim] == ["slow"]
        assert client.stats(queue).total == 0


def test_a_lost_claim_is_noticed_and_deletes_nothing(movable: MovableServer, queue: str) -> None:
    with Client(movable.url) as client:
        client.post_batch(queue, [1, 2])
        with pytest.raises(ClaimLost), client.claim(queue, ttl=60, renew=False) as claim:  # noqa: PT012 - the whole block is the test
            for message in claim:
                if message.body == 2:
                    movable.advance(61)
                    other = client.create_claim(queue)
                    assert other is not None
        assert client.stats(queue).claimed == 2


def test_a_lost_claim_ends_the_loop(movable: MovableServer, queue: str) -> None:
    with Client(movable.url) as client:
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


def wait_until_it_renews_no_more() -> None:
    (renewing,) = (one for one in threading.enumerate() if one.name == "zaqar-renew")
    renewing.join(20)
    assert not renewing.is_alive()


def test_a_claim_whose_messages_are_all_deleted_is_over_and_not_lost(
    client: Client, queue: str
) -> None:
    client.post_batch(queue, [1, 2])
    with client.claim(queue, renew_every=0.02) as claim:
        for message in claim:
            client.delete_message(queue, message.id, claim_id=claim.id)
            if message.body == 2:
                wait_until_it_renews_no_more()
        claim.check()
        assert claim.id is not None
        with pytest.raises(ClaimLost):
            client.get_claim(queue, claim.id)
    client.post_batch(queue, [1, 2])
    with client.claim(queue, renew_every=0.02) as claim:
        claim.done(*claim.messages)
        claim.delete_done()
        wait_until_it_renews_no_more()
        claim.check()


def test_what_others_deleted_after_the_claims_time_is_lost(
    movable: MovableServer, queue: str
) -> None:
    with Client(movable.url) as client:
        client.post_batch(queue, [1, 2])
        with client.claim(queue, ttl=60, renew_every=0.3) as claim:
            movable.advance(61)
            claim._until = time.monotonic()  # this process has slept through it too
            client.delete_messages(queue, [one.id for one in claim.messages], force=True)
            wait_until_it_renews_no_more()
            with pytest.raises(ClaimLost):
                claim.check()


def test_a_loop_without_a_block_claims_and_ends_the_claim(client: Client, queue: str) -> None:
    client.post_batch(queue, [1, 2, 3])
    assert [message.body for message in client.claim(queue, limit=2)] == [1, 2]
    assert claimable(client, queue) == [3]
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


def test_a_claim_is_not_silently_empty_before_it_was_made(client: Client, queue: str) -> None:
    client.post(queue, 1)
    claim = client.claim(queue)
    for asked in (bool, len, lambda one: one.messages):
        with pytest.raises(TypeError, match="use `with"):
            asked(claim)
    with claim:
        assert len(claim) == 1
    with pytest.raises(RuntimeError, match="used once"), claim:
        pass
    assert client.stats(queue).claimed == 0


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
    for _ in range(500):
        if not (await async_client.stats(queue)).claimed:
            break
        await asyncio.sleep(0.02)
    stats = await async_client.stats(queue)
    assert (stats.total, stats.claimed) == (1, 0)


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


async def test_async_claims_delete_and_release_alike(
    async_client: AsyncClient, client: Client, queue: str
) -> None:
    await async_client.post_batch(queue, [1, 2, 3, 4, 5])
    async with async_client.claim(queue, limit=2) as claim:
        assert [message.body for message in claim] == [1, 2]
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the whole block is the test
        async with async_client.claim(queue) as claim:
            for message in claim:
                if message.body == 4:
                    await claim.delete_done()
                    raise ZeroDivisionError
    assert claimable(client, queue) == [4, 5]


async def test_an_async_claim_is_renewed(movable: MovableServer, queue: str) -> None:
    async with AsyncClient(movable.url) as client:
        await client.post(queue, "slow")
        async with client.claim(queue, ttl=60, renew_every=0.05) as claim:
            assert claim.id is not None
            for _ in range(3):
                movable.advance(40)
                for _ in range(1000):
                    if (await client.get_claim(queue, claim.id)).age < 40:
                        break
                    await asyncio.sleep(0.02)
            assert [message.body for message in claim] == ["slow"]
        assert (await client.stats(queue)).total == 0


class Pausing:
    """A transport that keeps each answer back until it may go on."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport
        self.answered = asyncio.Event()
        self.go_on = asyncio.Event()

    async def send(self, base: str, request: Request) -> Response:
        answer = await self.transport.send(base, request)
        self.answered.set()
        await self.go_on.wait()
        return answer

    async def close(self) -> None:
        await self.transport.close()


async def test_cancelling_when_the_server_has_already_claimed_gives_the_messages_back(
    server: ServerProcess, queue: str
) -> None:
    async with AsyncClient(server.url) as client:
        await client.post_batch(queue, [1, 2])
        pausing = Pausing(client.transport)
        client.transport = pausing

        async def hold() -> None:
            async with client.claim(queue):
                pytest.fail("it was cancelled before")

        task = asyncio.create_task(hold())
        await pausing.answered.wait()
        task.cancel()
        await asyncio.sleep(0)
        pausing.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        stats = await client.stats(queue)
        assert (stats.total, stats.claimed) == (2, 0)


def test_a_claim_is_renewed_three_times_in_its_life(client: Client, queue: str) -> None:
    client.post(queue, 1)
    with client.claim(queue, ttl=90) as claim:
        assert next(claim._renewals("id")) == Sleep(30, claim._block)
        assert claim._end_renewals is not None
    with client.claim(f"{queue}-empty") as empty:
        assert empty._end_renewals is None


KILLED_WHILE_CLAIMING = """
    import os, signal, sys
    from zaqar_lite.client import Client
    class Killed:
        def __init__(self, transport):
            self.transport = transport
        def send(self, base, request):
            answer = self.transport.send(base, request)
            if request.method == sys.argv[3]:
                os.kill(os.getpid(), signal.SIGTERM)
            return answer
        def close(self):
            self.transport.close()
    client = Client(sys.argv[1])
    client.transport = Killed(client.transport)
    with client.claim(sys.argv[2], limit=2) as claim:
        print([message.body for message in claim], flush=True)
"""


@pytest.mark.parametrize(("method", "left"), [("POST", [1, 2, 3]), ("DELETE", [3])])
def test_sigterm_while_claiming_or_deleting_waits_for_the_answer(
    server: ServerProcess, queue: str, method: str, left: list[int]
) -> None:
    with Client(server.url) as client:
        client.post_batch(queue, [1, 2, 3])
        program = textwrap.dedent(KILLED_WHILE_CLAIMING)
        words = [sys.executable, "-c", program, server.url, queue, method]
        done = subprocess.run(words, check=False, capture_output=True)
        assert done.returncode == 128 + signal.SIGTERM
        assert bool(done.stdout) == (method == "DELETE")
        assert client.stats(queue).claimed == 0
        assert claimable(client, queue) == left


SYNC_HOLDER = """
    import sys, time
    from zaqar_lite.client import Client
    with Client(sys.argv[1]) as client, client.claim(sys.argv[2]) as claim:
        for message in claim:
            if message.body == 3:
                print("holding", flush=True)
                time.sleep(60)
"""
ASYNC_HOLDER = """
    import asyncio, sys
    from zaqar_lite.client import AsyncClient
    async def hold(client, number):
        async with client.claim(sys.argv[2], limit=3) as claim:
            for message in claim:
                if message.body % 3 == 0:
                    print("holding", flush=True)
                    await asyncio.sleep(60)
    async def main():
        async with AsyncClient(sys.argv[1]) as client:
            await asyncio.gather(hold(client, 1), hold(client, 2))
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "messages", "left"),
    [(SYNC_HOLDER, [1, 2, 3, 4], [3, 4]), (ASYNC_HOLDER, [1, 2, 3, 4, 5, 6], [3, 6])],
    ids=["sync", "async"],
)
def test_sigterm_deletes_what_is_done_and_releases_the_rest(
    server: ServerProcess, queue: str, program: str, messages: list[int], left: list[int]
) -> None:
    with Client(server.url) as client:
        client.post_batch(queue, messages)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), server.url, queue],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            for _ in range(len(left) - (program is SYNC_HOLDER)):
                assert process.stdout.readline() == b"holding\n"
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(10) in {128 + signal.SIGTERM, -signal.SIGTERM}
        assert claimable(client, queue) == left
        assert client.stats(queue).claimed == 0
