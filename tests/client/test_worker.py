"""The worker, against a real server."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import pytest

from tests.client.faulty_server import FaultyServer
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client, Message, Refused, worker
from zaqar_lite.client.worker import WorkerOptions

pytestmark = pytest.mark.anyio


def with_dead_letters(client: Client, queue: str, attempts: int) -> str:
    dead = f"{queue}-dead"
    client.create_queue(dead)
    client.create_queue(queue, {"_dead_letter_queue": dead, "_max_claim_count": attempts})
    return dead


def test_every_message_is_handled_and_deleted(client: Client, queue: str) -> None:
    seen: list[object] = []

    @worker(queue, concurrency=4, batch=5)
    def handle(message: Message) -> None:
        seen.append(message.body)

    client.post_batch(queue, list(range(60)))
    stats = handle.run(client, until_empty=True)
    assert (stats.processed, stats.failed, stats.lost) == (60, 0, 0)
    assert sorted(map(str, seen)) == sorted(map(str, range(60)))
    assert client.stats(queue).total == 0


def test_the_handler_can_be_called_by_itself(client: Client, queue: str) -> None:
    posted = client.get_message(queue, client.post(queue, 21))

    @worker(queue)
    def double(message: Message) -> int:
        return int(message.body) * 2

    assert double(posted) == 42


def test_a_poison_message_ends_in_the_dead_letter_queue(client: Client, queue: str) -> None:
    dead = with_dead_letters(client, queue, attempts=3)
    tries: Counter[str] = Counter()
    failures: list[Exception] = []

    @worker(
        queue,
        concurrency=2,
        batch=3,
        longest_pause=0.01,
        on_failure=lambda _, error: failures.append(error),
    )
    def handle(message: Message) -> None:
        tries[message.body] += 1
        if message.body == "poison":
            message_text = "cannot eat this"
            raise RuntimeError(message_text)

    client.post_batch(queue, ["a", "b", "poison", "c", "d"])
    stats = handle.run(client, until_empty=True)
    assert (stats.processed, stats.failed) == (4, 3)
    assert tries == {"a": 1, "b": 1, "c": 1, "d": 1, "poison": 3}
    assert {str(error) for error in failures} == {"cannot eat this"}
    (letter,) = client.list_dead_letters(dead)
    assert letter.body == "poison"
    assert letter.dead_letter is not None
    assert (letter.dead_letter.source, letter.dead_letter.claim_count) == (queue, 3)


@pytest.mark.parametrize("name", ["concurrency", "batch"])
def test_a_worker_that_could_do_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        WorkerOptions(**{name: 0})  # type: ignore[arg-type]


def test_stop_wakes_idle_slots(client: Client, queue: str) -> None:
    handle = worker(queue, concurrency=4, poll=30)(lambda _: None)
    threading.Timer(0.3, handle.stop).start()
    begin = time.monotonic()
    handle.run(client)
    assert time.monotonic() - begin < 5


def test_a_worker_that_may_not_work_says_so(queue: str) -> None:
    with FaultyServer() as server, Client(server.url) as client:
        server.script.extend([403] * 8)
        with pytest.raises(Refused):
            worker(queue, concurrency=2)(lambda _: None).run(client)


def test_an_async_handler_is_not_run_in_threads(client: Client, queue: str) -> None:
    @worker(queue)
    async def handle(message: Message) -> None:
        pass

    with pytest.raises(TypeError, match="serve"):
        handle.run(client)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_serving_handles_and_counts_alike(
    async_client: AsyncClient, client: Client, queue: str, kind: str
) -> None:
    dead = with_dead_letters(client, queue, attempts=2)
    seen: Counter[str] = Counter()

    def count(message: Message) -> None:
        seen[str(message.body)] += 1
        if message.body == "poison":
            raise ValueError(message.body)

    async def count_async(message: Message) -> None:
        count(message)

    handler = count_async if kind == "async" else count
    handle = worker(queue, concurrency=3, batch=4, longest_pause=0.01)(handler)
    await async_client.post_batch(queue, [*range(20), "poison"])
    stats = await handle.serve(async_client, until_empty=True)
    assert (stats.processed, stats.failed) == (20, 2)
    assert seen == {**{str(number): 1 for number in range(20)}, "poison": 2}
    assert client.stats(queue).total == 0
    assert client.stats(dead).total == 1


WORKER = """
    import sys, time
    from zaqar_lite.client import Client, worker
    @worker(sys.argv[2], concurrency=2, batch=4)
    def handle(message):
        print("in hand", flush=True)
        time.sleep(0.5)
    with Client(sys.argv[1]) as client:
        print(handle.run(client).processed, flush=True)
"""
ASYNC_WORKER = """
    import asyncio, sys
    from zaqar_lite.client import AsyncClient, worker
    @worker(sys.argv[2], concurrency=2, batch=4)
    async def handle(message):
        print("in hand", flush=True)
        await asyncio.sleep(0.5)
    async def main():
        async with AsyncClient(sys.argv[1]) as client:
            print((await handle.serve(client)).processed, flush=True)
    asyncio.run(main())
"""


@pytest.mark.parametrize("program", [WORKER, ASYNC_WORKER], ids=["sync", "async"])
def test_sigterm_finishes_what_is_in_hand_and_releases_the_rest(
    server: ServerProcess, queue: str, program: str
) -> None:
    with Client(server.url) as client:
        client.post_batch(queue, list(range(8)))
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), server.url, queue],
            stdout=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            for _ in range(2):
                assert process.stdout.readline() == b"in hand\n"
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(10) == 0
            assert process.stdout.read() == b"2\n"
        stats = client.stats(queue)
        assert (stats.total, stats.claimed) == (6, 0)


def test_a_worker_survives_a_server_that_restarts(queue: str) -> None:
    with ServerProcess("memory://") as server, Client(server.url) as client:
        seen = threading.Event()

        @worker(queue, poll=0.05)
        def handle(message: Message) -> None:
            seen.set()

        running = threading.Thread(target=handle.run, args=(client,))
        running.start()
        server.kill()
        server.start()
        client.post(queue, "after")
        assert seen.wait(20)
        handle.stop()
        running.join(10)
        assert not running.is_alive()
