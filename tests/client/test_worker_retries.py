"""What a worker does with failures, and how it waits: against a real server."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.client.old_server import OldServer
from tests.client.requests import counted
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    Client,
    Message,
    QueueOptions,
    Reject,
    Retry,
    Worker,
    worker,
)

pytestmark = pytest.mark.anyio
NO_PLACE = "has no place for dead letters"


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


@contextmanager
def working(handle: Worker, client: Client) -> Iterator[None]:
    """Have a worker work in a thread, and stop it in the end."""
    thread = threading.Thread(target=handle.run, args=(client,))
    thread.start()
    try:
        yield
    finally:
        begin = time.monotonic()
        handle.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert time.monotonic() - begin < 15


def letters(client: Client, queue: str) -> list[Message]:
    return list(client.list_dead_letters(queue))


def with_letters(client: Client, queue: str, **options: object) -> str:
    dead = f"{queue}-dead"
    wanted = QueueOptions(dead_letter_queue=dead, **options)  # type: ignore[arg-type]
    client.create_queue(dead)
    client.create_queue(queue, wanted)
    return dead


def test_failures_come_back_after_the_queues_back_off_and_the_letter_says_why(
    server: ServerProcess, client: Client, queue: str
) -> None:
    backoff = {"type": "exponential", "min": 1, "max": 60}
    dead = with_letters(client, queue, max_failures=3, retry_backoff=backoff)
    tries: list[float] = []

    @worker(queue, longest_pause=0.01, poll=60)
    def handle(message: Message) -> None:
        tries.append(time.monotonic())
        text = "the password is 1234"
        raise RuntimeError(text)

    with working(handle, client), Client(server.url, project="tests") as other:
        other.post(queue, "poison")
        until(lambda: letters(other, dead))
        (letter,) = letters(other, dead)
    assert handle.stats.failed == len(tries) == 3
    assert tries[1] - tries[0] >= 0.9
    assert tries[2] - tries[1] >= 1.9
    assert letter.dead_letter is not None
    assert (letter.dead_letter.source, letter.dead_letter.reason) == (queue, "max_failures")
    assert letter.attempts is not None
    assert [(one.number, one.outcome, one.delay) for one in letter.attempts] == [
        (1, "failed", 1),
        (2, "failed", 2),
        (3, "failed", 0),
    ]
    assert {(one.reason, one.detail) for one in letter.attempts} == {("RuntimeError", None)}


def test_what_was_raised_is_told_where_that_is_wanted(client: Client, queue: str) -> None:
    dead = with_letters(client, queue, max_failures=1)
    client.post(queue, "poison")

    @worker(queue, report_errors=True, longest_pause=0.01)
    def handle(message: Message) -> None:
        text = "\ud800" + "\u00fc" * 3_000  # too long, and no Unicode
        raise ValueError(text)

    handle.run(client, until_empty=True)
    (letter,) = letters(client, dead)
    assert letter.attempts is not None
    (attempt,) = letter.attempts
    assert attempt.reason == "ValueError"
    assert attempt.detail is not None
    assert set(attempt.detail) == {"?", "\u00fc"}
    assert 2_040 < len(attempt.detail.encode()) <= 2_048


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_handler_says_when_to_try_again_and_what_never_to_try(
    async_client: AsyncClient, client: Client, queue: str, kind: str
) -> None:
    dead = with_letters(client, queue)
    tries: dict[object, int] = {}

    def say(message: Message) -> None:
        tries[message.body] = tries.get(message.body, 0) + 1
        if message.body == "later" and tries["later"] == 1:
            raise Retry(after=0.5, reason="busy", detail="three before you")
        if message.body == "caught" and tries["caught"] == 1:
            try:
                assert 1 / 0
            except ZeroDivisionError as error:
                raise Retry(after=1) from error
        if message.body == "bad":
            raise Reject("bad_format", detail="line 3")

    async def say_async(message: Message) -> None:
        say(message)

    client.post_batch(queue, ["a", "later", "caught", "bad", "b"])
    if kind == "sync":
        handle = worker(queue)(say)
        with working(handle, client):
            await asyncio.to_thread(until, lambda: len(tries) == 5 and tries["caught"] == 2)
    else:
        handle = worker(queue)(say_async)
        serving = asyncio.ensure_future(handle.serve(async_client))
        await asyncio.to_thread(until, lambda: len(tries) == 5 and tries["caught"] == 2)
        handle.stop()
        await asyncio.wait_for(serving, 15)
    assert tries == {"a": 1, "later": 2, "caught": 2, "bad": 1, "b": 1}
    assert (handle.stats.processed, handle.stats.failed) == (4, 3)
    (letter,) = letters(client, dead)
    assert letter.dead_letter is not None
    assert letter.dead_letter.reason == "bad_format"
    assert letter.attempts is not None
    assert [(one.outcome, one.detail) for one in letter.attempts] == [("dead", "line 3")]
    assert client.stats(queue).total == 0


def test_a_retry_is_written_down(client: Client, queue: str) -> None:
    identifier = client.post(queue, "later")

    @worker(queue)
    def handle(message: Message) -> None:
        try:
            assert 1 / 0
        except ZeroDivisionError as error:
            raise Retry(after=600) from error

    assert handle.run(client, until_empty=True).failed == 1
    found = client.get_message(queue, identifier, details=True)
    assert found.failure_count == 1
    assert found.attempts is not None
    assert [(one.reason, one.delay) for one in found.attempts] == [("ZeroDivisionError", 600)]
    assert client.stats(queue).delayed == 1


def test_what_is_rejected_without_a_place_to_go_comes_again(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_queue(queue, {"_retry_backoff": {"type": "list", "delays": [600]}})
    identifier = client.post(queue, "bad")

    @worker(queue)
    def handle(message: Message) -> None:
        raise Reject("bad_format")

    handle.run(client, until_empty=True)
    assert NO_PLACE in caplog.text
    found = client.get_message(queue, identifier, details=True)
    assert (found.failure_count, found.claim_id) == (1, None)
    assert found.attempts is not None
    assert [one.reason for one in found.attempts] == ["bad_format"]


def test_a_delay_beyond_the_servers_limit_loses_nothing(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.post(queue, 1)
    tries: list[object] = []

    @worker(queue, batch=1)
    def handle(message: Message) -> None:
        tries.append(message.body)
        if len(tries) == 1:
            raise Retry(after=10**9)

    assert handle.run(client, until_empty=True).processed == 1
    assert "the delay must be between" in caplog.text


def test_what_succeeded_goes_with_a_failure_in_one_request(client: Client, queue: str) -> None:
    backoff = {"type": "list", "delays": [600]}
    client.create_queue(queue, {"_retry_backoff": backoff})
    client.post_batch(queue, [1, 2, 3, "poison", 4, 5])
    sent = counted(client)

    @worker(queue, longest_pause=0.01)
    def handle(message: Message) -> None:
        if message.body == "poison":
            raise ValueError

    stats = handle.run(client, until_empty=True)
    assert (stats.processed, stats.failed) == (5, 1)
    assert [one.partition(" ")[0] for one in sent] == ["POST", "POST", "DELETE", "POST"]


def test_a_stop_is_no_failure(client: Client, queue: str) -> None:
    client.post_batch(queue, range(5))

    @worker(queue)
    def handle(message: Message) -> None:
        handle.stop()

    assert handle.run(client).processed == 1
    rest = list(client.list_messages(queue, details=True))
    assert len(rest) == 4
    assert {(one.claim_count, one.failure_count) for one in rest} == {(1, 0)}
    assert client.stats(queue).claimed == 0


def test_an_idle_worker_asks_once_and_is_quick_when_something_comes(
    server: ServerProcess, client: Client, queue: str
) -> None:
    seen: dict[object, float] = {}

    @worker(queue, concurrency=4, poll=60)
    def handle(message: Message) -> None:
        seen[message.body] = time.monotonic()

    sent = counted(client)
    with working(handle, client), Client(server.url, project="tests") as other:
        time.sleep(3)
        assert len(sent) == 1
        for number in range(10):
            posted = time.monotonic()
            other.post(queue, number)
            until(lambda number=number: number in seen)  # type: ignore[misc]
            assert seen[number] - posted < 10
        time.sleep(1)
        # A claim that finds, the delete, and a look that finds nothing more, for each.
        assert len(sent) <= 1 + 10 * 4
        idle = len(sent)
        time.sleep(2)
        assert len(sent) == idle


async def test_an_idle_async_worker_asks_once_too(
    client: Client, async_client: AsyncClient, queue: str
) -> None:
    seen: list[object] = []

    @worker(queue, concurrency=4, poll=60)
    async def handle(message: Message) -> None:
        seen.append(message.body)

    sent = counted(async_client)
    serving = asyncio.ensure_future(handle.serve(async_client))
    await asyncio.sleep(3)
    assert len(sent) == 1
    client.post_batch(queue, range(30))
    await asyncio.to_thread(until, lambda: len(seen) == 30)
    begin = time.monotonic()
    handle.stop()
    await asyncio.wait_for(serving, 15)
    assert time.monotonic() - begin < 15
    assert client.stats(queue).total == 0


def test_a_backlog_wakes_every_slot(server: ServerProcess, client: Client, queue: str) -> None:
    at_work = threading.Barrier(4, timeout=30)

    @worker(queue, concurrency=4, batch=1, poll=60)
    def handle(message: Message) -> None:
        at_work.wait()

    with working(handle, client), Client(server.url, project="tests") as other:
        time.sleep(0.5)
        other.post_batch(queue, range(4))
        until(lambda: handle.stats.processed == 4)
    assert handle.stats.failed == 0


def test_a_server_that_cannot_settle_gets_its_messages_back_as_ever(
    server: ServerProcess, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tries: list[object] = []

    @worker(queue, poll=0.05, longest_pause=0.01)
    def handle(message: Message) -> None:
        tries.append(message.body)
        if message.body == 2 and tries.count(2) < 3:
            raise Retry(after=600)

    with OldServer(server.port) as old, Client(old.url, project="tests") as client:
        client.post_batch(queue, [1, 2, 3])
        with working(handle, client):
            until(lambda: handle.stats.processed == 3)
        assert sorted(map(str, tries)) == ["1", "2", "2", "2", "3"]
        assert client.stats(queue).total == 0
        assert sum("/settle" in one for one in old.seen) == 1
    assert caplog.text.count("is given back at the end of its claim") == 1
