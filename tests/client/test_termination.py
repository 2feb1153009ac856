"""SIGTERM: what is under way is finished, what is done is deleted, and the rest is free again."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.client.test_claims import claimable
from zaqar_lite.client import Client

ENDED = {128 + signal.SIGTERM, -signal.SIGTERM}
HEAD = """\
import asyncio, os, signal, sys, time
from zaqar_lite.client import AsyncClient, Client, worker
url, queue, *words = sys.argv[1:]
"""
KILLED_BY_A_REQUEST = """
    class Killed:
        def __init__(self, transport):
            self.transport = transport
        def send(self, base, request):
            answer = self.transport.send(base, request)
            if request.method == words[0]:
                os.kill(os.getpid(), signal.SIGTERM)
            return answer
        def close(self):
            self.transport.close()
    client = Client(url, project="tests")
    client.transport = Killed(client.transport)
    with client.claim(queue, limit=2) as claim:
        print([message.body for message in claim], flush=True)
"""
HOLDER = """
    with Client(url, project="tests") as client, client.claim(queue) as claim:
        for message in claim:
            if message.body == 3:
                print("holding", flush=True)
                time.sleep(60)
"""
ASYNC_HOLDER = """
    async def hold(client):
        async with client.claim(queue, limit=3) as claim:
            for message in claim:
                if message.body % 3 == 0:
                    print("holding", flush=True)
                    await asyncio.sleep(60)
    async def main():
        async with AsyncClient(url, project="tests") as client:
            await asyncio.gather(hold(client), hold(client))
    asyncio.run(main())
"""
WAITING = """
    with Client(url, project="tests") as client:
        print("waiting", flush=True)
        with client.claim(queue, wait=60) as claim:
            print(len(claim), flush=True)
"""
ASYNC_WAITING = """
    async def main():
        async with AsyncClient(url, project="tests") as client:
            print("waiting", flush=True)
            async with client.claim(queue, wait=60) as claim:
                print(len(claim), flush=True)
    asyncio.run(main())
"""
WORKER = """
    @worker(queue, concurrency=2, batch=4)
    def handle(message):
        print("in hand", flush=True)
        time.sleep(0.5)
    with Client(url, project="tests") as client:
        print(handle.run(client).processed, flush=True)
"""
ASYNC_WORKER = """
    @worker(queue, concurrency=2, batch=4)
    async def handle(message):
        print("in hand", flush=True)
        await asyncio.sleep(0.5)
    async def main():
        async with AsyncClient(url, project="tests") as client:
            print((await handle.serve(client)).processed, flush=True)
    asyncio.run(main())
"""


def terminated(
    program: str, client: Client, queue: str, *words: str, after: bytes = b"", times: int = 1
) -> tuple[int, bytes]:
    """Run a program, with SIGTERM once it has printed a line so often; its exit code and rest."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(program), client.url, queue, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        if after:
            for _ in range(times):
                assert process.stdout.readline() == after
            if after == b"waiting\n":
                time.sleep(0.5)  # until it does
            os.kill(process.pid, signal.SIGTERM)
        return process.wait(15), process.stdout.read()


@pytest.mark.parametrize(("method", "left"), [("POST", [1, 2, 3]), ("DELETE", [3])])
def test_claiming_and_deleting_wait_for_the_answer(
    client: Client, queue: str, method: str, left: list[int]
) -> None:
    client.post_batch(queue, [1, 2, 3])
    code, printed = terminated(KILLED_BY_A_REQUEST, client, queue, method)
    assert code == 128 + signal.SIGTERM
    assert bool(printed) == (method == "DELETE")
    assert client.stats(queue).claimed == 0
    assert claimable(client, queue) == left


@pytest.mark.parametrize(
    ("program", "holders", "left"),
    [(HOLDER, 1, [3, 4, 5, 6]), (ASYNC_HOLDER, 2, [3, 6])],
    ids=["sync", "async"],
)
def test_a_block_deletes_what_is_done_and_releases_the_rest(
    client: Client, queue: str, program: str, holders: int, left: list[int]
) -> None:
    client.post_batch(queue, [1, 2, 3, 4, 5, 6])
    code, _ = terminated(program, client, queue, after=b"holding\n", times=holders)
    assert code in ENDED
    assert client.stats(queue).claimed == 0
    assert claimable(client, queue) == left


@pytest.mark.parametrize("program", [WAITING, ASYNC_WAITING], ids=["sync", "async"])
def test_a_claim_that_waits_ends(client: Client, queue: str, program: str) -> None:
    code, printed = terminated(program, client, queue, after=b"waiting\n")
    assert (code in ENDED, printed) == (True, b"")


@pytest.mark.parametrize("program", [WORKER, ASYNC_WORKER], ids=["sync", "async"])
def test_a_worker_finishes_what_is_in_hand_and_releases_the_rest(
    client: Client, queue: str, program: str
) -> None:
    client.post_batch(queue, list(range(8)))
    assert terminated(program, client, queue, after=b"in hand\n", times=2) == (0, b"2\n")
    stats = client.stats(queue)
    assert (stats.total, stats.claimed) == (6, 0)
