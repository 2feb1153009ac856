"""The worker, against a real server."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import pytest

from tests.client.conftest import MovableServer
from tests.client.faulty_server import FaultyServer
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    Client,
    Message,
    QueueNotFound,
    Refused,
    TimeLimitExceeded,
    worker,
)
from zaqar_lite.client.worker import Handler, WorkerOptions

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


@dataclasses.dataclass(frozen=True)
class Order:
    number: int


def test_bodies_are_decoded_and_one_that_cannot_be_fails_alone(client: Client, queue: str) -> None:
    dead = with_dead_letters(client, queue, attempts=1)
    orders: list[Order] = []

    @worker(queue, decoder=lambda body: Order(**body), longest_pause=0.01, batch=4)
    def handle(message: Message[Order]) -> None:
        orders.append(message.body)

    client.post_batch(queue, [{"number": 1}, {"nonsense": 2}, {"number": 3}])
    handle.run(client, until_empty=True)
    assert orders == [Order(1), Order(3)]
    (letter,) = client.list_dead_letters(dead)
    assert letter.body == {"nonsense": 2}
    assert letter.attempts is not None
    assert letter.attempts[0].reason == "TypeError"


def test_middleware_goes_around_the_handler_in_order(client: Client, queue: str) -> None:
    calls: list[str] = []

    def outer(message: Message, call_next: Handler) -> object:
        calls.append("outer begins")
        try:
            return call_next(message)
        finally:
            calls.append("outer ends")

    def inner(message: Message, call_next: Handler) -> object:
        calls.append("inner")
        return call_next(message)

    @worker(queue, middleware=[outer, inner])
    def handle(message: Message) -> None:
        calls.append(message.body)

    client.post(queue, "handler")
    handle.run(client, until_empty=True)
    assert calls == ["outer begins", "inner", "handler", "outer ends"]


async def test_middleware_goes_around_an_async_handler(
    async_client: AsyncClient, queue: str
) -> None:
    calls: list[str] = []

    async def around(message: Message, call_next: Handler) -> None:
        calls.append("begins")
        await call_next(message)
        calls.append("ends")

    @worker(queue, middleware=[around])
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        calls.append(message.body)

    await async_client.post(queue, "handler")
    await handle.serve(async_client, until_empty=True)
    assert calls == ["begins", "handler", "ends"]


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


def interrupted(message: Message) -> None:
    """Take longer than any limit, but in Python, where a thread can be interrupted."""
    end = time.monotonic() + 20
    while message.body == "slow" and time.monotonic() < end:
        time.sleep(0.01)


def test_a_handler_that_takes_too_long_is_interrupted_and_its_message_comes_again(
    client: Client, queue: str
) -> None:
    dead = with_dead_letters(client, queue, attempts=2)
    failures: list[Exception] = []
    handle = worker(
        queue,
        time_limit=0.1,
        longest_pause=0.01,
        on_failure=lambda _, error: failures.append(error),
    )(interrupted)
    client.post_batch(queue, ["a", "slow", "b"])
    begin = time.monotonic()
    stats = handle.run(client, until_empty=True)
    assert time.monotonic() - begin < 15
    assert (stats.processed, stats.failed) == (2, 2)
    assert all(isinstance(error, TimeLimitExceeded) for error in failures)
    assert client.stats(dead).total == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_serving_interrupts_too(
    async_client: AsyncClient, client: Client, queue: str, kind: str
) -> None:
    dead = with_dead_letters(client, queue, attempts=1)

    async def interrupted_async(message: Message) -> None:
        if message.body == "slow":
            await asyncio.sleep(60)

    handler = interrupted_async if kind == "async" else interrupted
    handle = worker(queue, time_limit=0.1, longest_pause=0.01)(handler)
    await async_client.post_batch(queue, ["a", "slow", "b"])
    stats = await handle.serve(async_client, until_empty=True)
    assert (stats.processed, stats.failed) == (2, 1)
    assert client.stats(dead).total == 1


def test_a_claim_is_not_renewed_while_its_handler_is_too_late(
    movable: MovableServer, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    @worker(queue, time_limit=0.05, ttl=60)
    def handle(message: Message) -> None:
        go_on.wait(20)  # in C: it cannot be interrupted

    with Client(movable.url) as client:
        client.post(queue, "stuck")
        running = threading.Thread(target=handle.run, args=(client,))
        running.start()
        try:
            for _ in range(1000):
                if "takes longer than 0.05 s" in caplog.text:
                    break
                time.sleep(0.02)
            assert "go_on.wait(20)" in caplog.text
            movable.advance(61)
            assert client.create_claim(queue) is not None
        finally:
            go_on.set()
            handle.stop()
            running.join(20)
        assert handle.stats.failed == 1


def test_a_failure_is_logged_with_its_traceback_unless_somebody_takes_it(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: Message) -> None:
        reason = "cannot eat this"
        raise RuntimeError(reason)

    def fail_too(message: Message, error: Exception) -> None:
        raise error

    with_dead_letters(client, queue, attempts=1)
    client.post(queue, 1)
    worker(queue, longest_pause=0.01)(fail).run(client, until_empty=True)
    assert "RuntimeError: cannot eat this" in caplog.text
    assert "in fail" in caplog.text
    caplog.clear()
    client.post(queue, 2)
    told: list[object] = []
    handle = worker(queue, longest_pause=0.01, on_failure=lambda m, _: told.append(m.body))(fail)
    handle.run(client, until_empty=True)
    assert told == [2]
    assert "cannot eat this" not in caplog.text
    client.post(queue, 3)
    handle = worker(queue, longest_pause=0.01, on_failure=fail_too)(fail)
    assert handle.run(client, until_empty=True).failed == 1
    assert "on_failure of" in caplog.text


async def test_a_worker_can_want_its_queue_to_exist(
    async_client: AsyncClient, client: Client, queue: str
) -> None:
    handle = worker(queue, must_exist=True)(lambda _: None)
    with pytest.raises(QueueNotFound, match=queue):
        handle.run(client, until_empty=True)
    with pytest.raises(QueueNotFound, match=queue):
        await handle.serve(async_client, until_empty=True)
    client.create_queue(queue)
    handle.run(client, until_empty=True)
    await handle.serve(async_client, until_empty=True)


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
