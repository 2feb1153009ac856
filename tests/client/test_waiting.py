"""Calls that wait for messages, against a real server and one that does not know how."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.requests import counted
from tests.proxy import OldServer
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.client.errors import BadRequest
from zaqar_lite.client.long_polling import Connection

pytestmark = pytest.mark.anyio


def post_later(url: str, queue: str, *bodies: object, after: float = 0.3) -> threading.Thread:
    """Post from another client, a moment later."""

    def post() -> None:
        time.sleep(after)
        with Client(url, project="tests") as other:
            other.post_batch(queue, bodies)

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def test_a_claim_a_pop_and_a_list_wait_in_one_request(client: Client, queue: str) -> None:
    sent = counted(client)
    posting = post_later(client.url, queue, 1)
    begin = time.monotonic()
    with client.claim(queue, wait=30) as claim:
        assert [message.body for message in claim] == [1]
    assert time.monotonic() - begin < 15
    posting.join()
    assert len([one for one in sent if "claims?" in one]) == 1
    posting = post_later(client.url, queue, 2)
    assert [message.body for message in client.pop(queue, wait=30)] == [2]
    posting.join()
    posting = post_later(client.url, queue, 3, 4)
    found = client.list_messages(queue, wait=30)
    assert [next(found).body, next(found).body] == [3, 4]
    posting.join()
    assert len(sent) == 4


def test_a_wait_ends_with_nothing_and_may_be_longer_than_the_timeout(
    server: ServerProcess, queue: str
) -> None:
    with Client(server.url, timeout=0.5) as client, ThreadPoolExecutor() as threads:

        def claim() -> list[object]:
            with client.claim(queue, wait=1) as claim:
                return list(claim)

        begin = time.monotonic()
        calls = (
            threads.submit(claim),
            threads.submit(client.pop, queue, wait=1),
            threads.submit(lambda: list(client.list_messages(queue, wait=1))),
        )
        assert [one.result() for one in calls] == [[], [], []]
        assert time.monotonic() - begin >= 1


def test_a_wait_longer_than_a_request_is_several(client: Client, queue: str) -> None:
    client.longest_wait = 1
    sent = counted(client)
    assert client.pop(queue, wait=2.5) == []
    assert [one.rpartition("wait=")[2] for one in sent][:3] == ["1", "1", "1"]


def test_a_server_that_lets_wait_less_is_asked_for_less(queue: str) -> None:
    env = {"ZAQAR_LITE_MAX_WAIT": "6"}
    with ServerProcess("memory://", env=env) as server:
        with Client(server.url, project="tests") as client:
            sent = counted(client)
            posting = post_later(server.url, queue, 1)
            with client.claim(queue, wait=30) as claim:
                assert [message.body for message in claim] == [1]
            posting.join()
            assert [one.rpartition("wait=")[2] for one in sent[:3]] == ["20", "10", "5"]
            assert client.longest_wait == 5
            with pytest.raises(BadRequest):
                client.pop(queue, 10**6, wait=1)


def test_a_server_that_does_not_wait_is_not_asked_in_a_hot_loop(
    server: ServerProcess, queue: str
) -> None:
    with OldServer(server.url) as old, Client(old.url, project="tests") as client:
        assert client.pop(queue, wait=3) == []
        assert 2 <= len(old.seen) <= 40
        posting = post_later(server.url, queue, 1)
        with client.claim(queue, wait=30, poll=0.2) as claim:
            assert [message.body for message in claim] == [1]
        posting.join()


async def test_cancelling_a_claim_that_waits_ends_it_at_once_and_claims_nothing(
    async_client: AsyncClient, queue: str
) -> None:
    async def hold() -> None:
        async with async_client.claim(queue, wait=30):
            pytest.fail("there is nothing to claim")

    tasks = [asyncio.create_task(hold()) for _ in range(5)]
    await asyncio.sleep(0.2)
    begin = time.monotonic()
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(end, asyncio.CancelledError)
    assert time.monotonic() - begin < 10
    await async_client.post(queue, 1)
    held = await async_client.create_claim(queue, details=True)
    assert held is not None
    assert held.messages[0].claim_count == 1


def nobody_holds(client: Client, queue: str) -> bool:
    """Whether the message is ready in a moment: the server takes back what it could not give."""
    for _ in range(1_000):
        stats = client.stats(queue)
        if (stats.total, stats.claimed) == (1, 0):
            return True
        time.sleep(0.02)
    return False


def test_hanging_up_loses_nothing_that_was_given(client: Client, queue: str) -> None:
    """Messages that come while the connection is hung up are claimed here, or by nobody."""
    rounds = 100

    def play(number: int) -> bool:
        own, connection = f"{queue}-{number}", Connection()
        hanging_up = threading.Timer(0.05, connection.hang_up)
        posting = post_later(client.url, own, number, after=0.045 + 0.01 * number / rounds)
        hanging_up.start()
        held = client.create_claim(own, wait=30, connection=connection)
        hanging_up.join()
        posting.join()
        if held is not None:
            assert [message.body for message in held.messages] == [number]
            client.release_claim(own, held.id)
        return nobody_holds(client, own)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(play, range(rounds)))


def test_a_connection_that_is_over_waits_no_more(client: Client, queue: str) -> None:
    connection = Connection()
    connection.hang_up()
    begin = time.monotonic()
    assert client.create_claim(queue, wait=30, connection=connection) is None
    assert time.monotonic() - begin < 10
    client.post(queue, 1)
    assert client.create_claim(queue) is not None


def test_a_connection_is_cut_where_nobody_sees_its_end(server: ServerProcess, queue: str) -> None:
    """A proxy that does not pass on that the client has ended its half of the connection."""
    with OldServer(server.url) as proxy, Client(proxy.url) as client:
        proxy.deaf = True
        connection = Connection()
        threading.Timer(0.3, connection.hang_up).start()
        begin = time.monotonic()
        assert client.create_claim(queue, wait=30, connection=connection) is None
        assert time.monotonic() - begin < 10
