"""The worker, against a real server."""

import asyncio
import dataclasses
import functools
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.client.conftest import BOTH, MovableServer
from tests.client.faulty_server import FaultyServer
from tests.client.requests import counted
from tests.proxy import OldServer
from tests.server import ServerProcess
from tests.waiting import until
from zaqar_lite.client import (
    AsyncClient,
    Client,
    Message,
    QueueNotFound,
    QueueOptions,
    Refused,
    Reject,
    Retry,
    TimeLimitExceeded,
    Worker,
    worker,
)
from zaqar_lite.client.worker import Handler, WorkerStats

pytestmark = pytest.mark.anyio
WAYS = pytest.mark.parametrize("way", ["threads", "tasks", "threads of an async client"])


async def work(
    way: str, handler: Callable[[Message], object], client: Client, queue: str, **options: Any
) -> WorkerStats:
    """Have a handler work in one of the ways until its queue is empty."""

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        handler(message)

    options = {"longest_pause": 0.01, **options}
    if way == "threads":
        return worker(queue, **options)(handler).run(client, until_empty=True)
    async with AsyncClient(client.url, project="tests") as other:
        made = worker(queue, **options)(handle if way == "tasks" else handler)
        return await made.serve(other, until_empty=True)


@asynccontextmanager
async def working(handle: Worker, client: Client | AsyncClient) -> AsyncIterator[None]:
    """Have a worker work beside the block, and stop it in the end."""
    if isinstance(client, Client):
        task = asyncio.ensure_future(asyncio.to_thread(handle.run, client))
    else:
        task = asyncio.ensure_future(handle.serve(client))
    try:
        yield
    finally:
        handle.stop()
        await asyncio.wait_for(task, 15)


def with_letters(client: Client, queue: str, **options: Any) -> str:
    dead = f"{queue}-dead"
    client.create_queue(dead)
    client.create_queue(queue, QueueOptions(dead_letter_queue=dead, **options))
    return dead


def the_letter(client: Client, dead: str) -> Message:
    (letter,) = client.list_dead_letters(dead)
    return letter


def told(message: Message) -> list[tuple[object, ...]]:
    """What the ended attempts of a message say."""
    assert message.attempts is not None
    return [(one.outcome, one.reason, one.detail, one.delay) for one in message.attempts]


@WAYS
async def test_every_message_is_handled_and_poison_ends_in_the_dead_letter_queue(
    client: Client, queue: str, way: str
) -> None:
    dead = with_letters(client, queue, max_claims=3)
    tries: Counter[str] = Counter()
    failures: list[str] = []

    def handle(message: Message) -> None:
        tries[str(message.body)] += 1
        if message.body == "poison":
            raise RuntimeError(message.body)

    client.post_batch(queue, [*range(30), "poison", *range(30, 60)])
    options: dict[str, Any] = {"concurrency": 4, "batch": 5}
    options["on_failure"] = lambda _, error: failures.append(str(error))
    stats = await work(way, handle, client, queue, **options)
    assert (stats.processed, stats.failed, stats.lost) == (60, 3, 0)
    assert tries == {**{str(number): 1 for number in range(60)}, "poison": 3}
    assert failures == ["poison"] * 3
    assert client.stats(queue).total == 0
    letter = the_letter(client, dead)
    assert letter.dead_letter is not None
    assert (letter.body, letter.dead_letter.source) == ("poison", queue)
    assert letter.dead_letter.claim_count == 3


def test_a_handler_can_be_called_by_itself_and_an_async_one_is_served(
    client: Client, queue: str
) -> None:
    posted = client.get_message(queue, client.post(queue, 21))

    @worker(queue)
    def double(message: Message) -> int:
        return int(message.body) * 2

    @worker(queue)
    async def handle(message: Message) -> None:
        pass

    assert double(posted) == 42
    with pytest.raises(TypeError, match="serve"):  # and is not run in threads
        handle.run(client)


@pytest.mark.parametrize("where", ["what it returns", "its middleware"])
async def test_what_turns_out_to_be_async_is_awaited_or_refused_and_never_taken_for_done(
    client: Client, async_client: AsyncClient, queue: str, where: str
) -> None:
    handled: list[object] = []

    async def around(message: Message, call_next: Handler) -> object:
        return call_next(message)

    def handle(message: Message) -> object:
        return around(message, lambda one: handled.append(one.body))

    made = worker(queue)(handle)
    if where == "its middleware":
        made = worker(queue, middleware=[around])(lambda one: handled.append(one.body))
    client.post(queue, 1)
    with pytest.raises(TypeError, match="is async: use"):
        made.run(client, until_empty=True)
    assert (handled, client.stats(queue).total) == ([], 1)
    await made.serve(async_client, until_empty=True)
    assert (handled, client.stats(queue).total) == ([1], 0)


async def test_a_handler_that_awaits_what_was_cancelled_has_failed(
    client: Client, async_client: AsyncClient, queue: str
) -> None:
    async def handle(message: Message) -> None:
        other = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    dead = with_letters(client, queue, max_failures=2)
    client.post(queue, 1)
    made = worker(queue, longest_pause=0.01)(handle)
    stats = await made.serve(async_client, until_empty=True)
    assert (stats.processed, stats.failed) == (0, 2)
    assert [reason for _, reason, *_ in told(the_letter(client, dead))] == ["CancelledError"] * 2


@dataclasses.dataclass(frozen=True)
class Order:
    number: int


def test_bodies_are_decoded_and_one_that_cannot_be_fails_alone(client: Client, queue: str) -> None:
    dead = with_letters(client, queue, max_claims=1)
    orders: list[Order] = []

    @worker(queue, decoder=lambda body: Order(**body), longest_pause=0.01, batch=4)
    def handle(message: Message[Order]) -> None:
        orders.append(message.body)

    client.post_batch(queue, [{"number": 1}, {"nonsense": 2}, {"number": 3}])
    handle.run(client, until_empty=True)
    assert orders == [Order(1), Order(3)]
    letter = the_letter(client, dead)
    assert letter.body == {"nonsense": 2}
    assert [reason for _, reason, *_ in told(letter)] == ["TypeError"]


async def test_middleware_goes_around_the_handler_in_order(
    client: Client, async_client: AsyncClient, queue: str
) -> None:
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

    async def around(message: Message, call_next: Handler) -> None:
        calls.append("begins")
        await call_next(message)
        calls.append("ends")

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        calls.append(message.body)

    client.post(queue, "handler")
    plain = worker(queue, middleware=[outer, inner])(lambda message: calls.append(message.body))
    plain.run(client, until_empty=True)
    assert calls == ["outer begins", "inner", "handler", "outer ends"]
    calls.clear()
    client.post(queue, "handler")
    await worker(queue, middleware=[around])(handle).serve(async_client, until_empty=True)
    assert calls == ["begins", "handler", "ends"]


@pytest.mark.parametrize("way", ["threads", "tasks"])
async def test_a_handler_that_takes_too_long_is_interrupted_and_its_message_comes_again(
    client: Client, async_client: AsyncClient, queue: str, way: str
) -> None:
    dead = with_letters(client, queue, max_claims=2)
    failures: list[Exception] = []

    def interrupted(message: Message) -> None:
        end = time.monotonic() + 20
        while message.body == "slow" and time.monotonic() < end:
            time.sleep(0.01)

    async def cancelled(message: Message) -> None:
        if message.body == "slow":
            await asyncio.sleep(60)

    make: Callable[[Callable[..., Any]], Worker] = worker(
        queue, time_limit=0.1, longest_pause=0.01, on_failure=lambda _, e: failures.append(e)
    )
    client.post_batch(queue, ["a", "slow", "b"])
    begin = time.monotonic()
    if way == "threads":
        stats = make(interrupted).run(client, until_empty=True)
    else:
        stats = await make(cancelled).serve(async_client, until_empty=True)
    assert time.monotonic() - begin < 15
    assert (stats.processed, stats.failed) == (2, 2)
    assert all(isinstance(error, TimeLimitExceeded) for error in failures)
    assert client.stats(dead).total == 1


async def test_a_claim_is_not_renewed_while_its_handler_is_too_late(
    movable: MovableServer, moving: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    @worker(queue, time_limit=0.05, ttl=60)
    def handle(message: Message) -> None:
        go_on.wait(20)  # in C: it cannot be interrupted

    moving.post(queue, "stuck")
    with Client(movable.url, project="tests") as client:
        async with working(handle, client):
            await until(lambda: "takes longer than 0.05 s" in caplog.text)
            assert "go_on.wait(20)" in caplog.text
            movable.advance(61)
            assert moving.create_claim(queue) is not None
            go_on.set()
    assert handle.stats.failed == 1


def test_a_failure_is_logged_with_its_traceback_unless_somebody_takes_it(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodies: list[object] = []

    def fail(message: Message) -> None:
        reason = "cannot eat this"
        raise RuntimeError(reason)

    def fail_too(message: Message, error: Exception) -> None:
        raise error

    def fail_on(body: int, on_failure: Callable[[Message, Exception], None] | None) -> str:
        caplog.clear()
        client.post(queue, body)
        handle = worker(queue, longest_pause=0.01, on_failure=on_failure)(fail)
        assert handle.run(client, until_empty=True).failed == 1
        return caplog.text

    with_letters(client, queue, max_claims=1)
    log = fail_on(1, None)
    assert "RuntimeError: cannot eat this" in log
    assert "in fail" in log
    assert "cannot eat this" not in fail_on(2, lambda message, _: bodies.append(message.body))
    assert bodies == [2]
    assert "on_failure of" in fail_on(3, fail_too)


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


def test_a_worker_that_may_not_work_says_so(queue: str) -> None:
    with FaultyServer() as server, Client(server.url) as client:
        server.script.extend([403] * 8)
        with pytest.raises(Refused):
            worker(queue, concurrency=2)(lambda _: None).run(client)


async def test_a_worker_survives_a_server_that_restarts(queue: str) -> None:
    with ServerProcess("memory://") as server, Client(server.url) as client:
        seen: list[object] = []
        handle = worker(queue, poll=0.05)(lambda message: seen.append(message.body))
        async with working(handle, client):
            server.kill()
            server.start()
            client.post(queue, "after")
            await until(lambda: seen == ["after"])


def test_what_was_raised_is_told_where_that_is_wanted(client: Client, queue: str) -> None:
    dead = with_letters(client, queue, max_failures=1)
    client.post(queue, "poison")

    @worker(queue, report_errors=True, longest_pause=0.01)
    def handle(message: Message) -> None:
        text = "\ud800" + "\u00fc" * 3_000  # too long, and no Unicode
        raise ValueError(text)

    handle.run(client, until_empty=True)
    ((_, reason, detail, _),) = told(the_letter(client, dead))
    assert reason == "ValueError"
    assert set(str(detail)) == {"?", "\u00fc"}
    assert 2_040 < len(str(detail).encode()) <= 2_048


@BOTH
async def test_a_handler_says_when_to_try_again_and_what_never_to_try(
    async_client: AsyncClient, client: Client, queue: str, kind: str
) -> None:
    dead = with_letters(client, queue)
    tries: Counter[str] = Counter()

    def say(message: Message) -> None:
        tries[message.body] += 1
        if message.body == "later" and tries["later"] == 1:
            raise Retry(after=0.5, reason="busy", detail="three before you")
        if message.body == "bad":
            raise Reject("bad_format", detail="line 3")

    async def say_async(message: Message) -> None:
        say(message)

    client.post_batch(queue, ["a", "later", "bad", "b"])
    handle = worker(queue)(say if kind == "sync" else say_async)
    async with working(handle, client if kind == "sync" else async_client):
        await until(lambda: handle.stats.processed == 3)
    assert tries == {"a": 1, "later": 2, "bad": 1, "b": 1}
    assert handle.stats.failed == 2
    letter = the_letter(client, dead)
    assert letter.dead_letter is not None
    assert letter.dead_letter.reason == "bad_format"
    assert told(letter) == [("dead", "bad_format", "line 3", 0)]
    assert client.stats(queue).total == 0


def test_a_retry_is_written_down_and_so_is_what_is_rejected_without_a_place_to_go(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_queue(queue, {"_retry_backoff": {"type": "list", "delays": [600]}})
    ids = client.post_batch(queue, ["later", "bad"])

    @worker(queue)
    def handle(message: Message) -> None:
        if message.body == "bad":
            raise Reject("bad_format")
        try:
            assert 1 / 0
        except ZeroDivisionError as error:
            raise Retry(after=300) from error

    assert handle.run(client, until_empty=True).failed == 2
    assert "not as its handler decided" in caplog.text
    later, bad = (client.get_message(queue, one, details=True) for one in ids)
    assert [(one.failure_count, one.claim_id) for one in (later, bad)] == [(1, None)] * 2
    assert told(later) == [("failed", "ZeroDivisionError", None, 300)]
    assert told(bad) == [("failed", "bad_format", None, 600)]


@pytest.mark.parametrize("decision", [Retry(after=10**9), Retry(after=-1), Reject("bad_format")])
def test_a_slot_pauses_where_the_message_comes_again_at_once(
    client: Client, queue: str, decision: Exception
) -> None:
    """Neither so long a delay nor a dead letter is possible here."""
    client.post(queue, 1)

    @worker(queue, on_failure=lambda *_: handle.stop() if handle.stats.failed == 50 else None)
    def handle(_: Message) -> None:
        raise decision

    ending = threading.Timer(1, handle.stop)
    ending.start()
    try:
        handle.run(client)
    finally:
        ending.cancel()
    assert handle.stats.failed < 25


def test_a_stop_does_not_wait_as_long_as_a_busy_server_asks_for(queue: str) -> None:
    with FaultyServer() as server, Client(server.url) as client:
        server.script.append((503, {"Retry-After": "30"}))
        handle = worker(queue)(lambda _: None)
        working = threading.Thread(target=handle.run, args=[client])
        working.start()
        while not server.seen:
            time.sleep(0.01)
        time.sleep(0.2)  # until its answer has come
        handle.stop()
        working.join(20)
        assert not working.is_alive()


def test_a_stop_is_no_failure(client: Client, queue: str) -> None:
    client.post_batch(queue, range(5))

    @worker(queue)
    def handle(message: Message) -> None:
        if message.body == 1:  # beside it a second one is claimed
            handle.stop()

    assert handle.run(client).processed == 2
    rest = list(client.list_messages(queue, details=True))
    assert [(one.claim_count, one.failure_count) for one in rest] == [(1, 0), (0, 0), (0, 0)]
    assert client.stats(queue).claimed == 0


@BOTH
async def test_an_idle_worker_asks_once_and_is_quick_when_something_comes(
    server: ServerProcess, client: Client, async_client: AsyncClient, queue: str, kind: str
) -> None:
    seen: list[object] = []

    async def note(message: Message) -> None:
        seen.append(message.body)

    make: Callable[[Callable[..., Any]], Worker] = worker(queue, concurrency=4, poll=60)
    handle = make(note if kind == "async" else lambda message: seen.append(message.body))
    sent = counted(client if kind == "sync" else async_client)
    with Client(server.url, project="tests") as other:
        async with working(handle, client if kind == "sync" else async_client):
            await until(lambda: sent)
            for number in range(5):
                other.post(queue, number)
                await until(functools.partial(seen.__contains__, number))
            await asyncio.sleep(0.3)
            # A claim that finds, the delete, and a look that finds nothing more, for each.
            assert len(sent) <= 1 + 5 * 4
            idle = len(sent)
            await asyncio.sleep(0.3)
            assert len(sent) == idle
        assert other.stats(queue).total == 0


async def test_a_backlog_wakes_every_slot(
    server: ServerProcess, client: Client, queue: str
) -> None:
    at_work = threading.Barrier(4, timeout=30)

    @worker(queue, concurrency=4, poll=60)
    def handle(message: Message) -> None:
        at_work.wait()

    with Client(server.url, project="tests") as other:
        async with working(handle, client):
            await asyncio.sleep(0.5)
            other.post_batch(queue, range(4))
            await until(lambda: handle.stats.processed == 4)
    assert handle.stats.failed == 0


def test_what_is_slow_to_handle_is_claimed_one_at_a_time(
    client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("zaqar_lite.client.worker")  # the package names its function alike
    monkeypatch.setattr(module, "_QUICK", 0.0)
    client.post_batch(queue, range(5))
    held: list[int] = []

    @worker(queue)
    def handle(message: Message) -> None:
        held.append(client.stats(queue).claimed)

    assert handle.run(client, until_empty=True).processed == 5
    monkeypatch.setattr(module, "_QUICK", 60.0)
    client.post_batch(queue, range(5))
    handle.run(client, until_empty=True)
    assert held == [1] * 5 + [1, 2, 2, 2, 2]


async def test_a_server_that_cannot_settle_gets_its_messages_back_as_ever(
    server: ServerProcess, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    tries: Counter[int] = Counter()

    @worker(queue, poll=0.05, longest_pause=0.01)
    def handle(message: Message) -> None:
        tries[message.body] += 1
        if message.body == 2 and tries[2] < 3:
            raise Retry(after=600)

    with OldServer(server.url) as old, Client(old.url, project="tests") as client:
        client.post_batch(queue, [1, 2, 3])
        async with working(handle, client):
            await until(lambda: handle.stats.processed == 3)
        assert tries == {1: 1, 2: 3, 3: 1}
        assert client.stats(queue).total == 0
        assert sum("/settle" in one for one in old.seen) == 1
    assert caplog.text.count("not as its handler decided") == 1
