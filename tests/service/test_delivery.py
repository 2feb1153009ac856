"""Delivery: attempts written down, circuit breakers, queue workers, targets inside the server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest

from tests.waiting import at_work, until
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import ListQuery, Message, QueueRef, Record, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.delivery import attempt as module
from zaqar_lite.service.delivery import outbox
from zaqar_lite.service.delivery.attempt import Endpoint, Notification, endpoint_of
from zaqar_lite.service.delivery.inspection import AttemptLog
from zaqar_lite.service.delivery.internal_targets import ConnectedSubscribers, process_queue
from zaqar_lite.service.delivery.outbox import QueueWorker
from zaqar_lite.service.encryption import EncryptionKeys
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio

QUEUE = QueueRef("p", "q")


class Slow:
    """A store that lets others on in every call, and counts its writes."""

    def __init__(self, store: ManagementStore) -> None:
        self._store = store
        self.writes = 0

    async def get_record(self, *args: Any) -> Record | None:
        await asyncio.sleep(0)
        return await self._store.get_record(*args)

    async def delete_record(self, *args: Any, **more: Any) -> bool:
        return await self._store.delete_record(*args, **more)

    async def put_record(self, *args: Any, **more: Any) -> Record:
        self.writes += 1
        await asyncio.sleep(0)
        record = await self._store.put_record(*args, **more)
        await asyncio.sleep(0)
        return record


def made() -> tuple[AttemptLog, Slow]:
    clock = Clock()
    store = Slow(create("memory://", clock=clock, options=StoreOptions())[1])
    return AttemptLog(cast(ManagementStore, store), clock), store


def subscription(name: str) -> Subscription:
    return Subscription(name, QUEUE, "http://r.example", 60, {}, 0, 0)


def attempt(at: int) -> dict[str, int]:
    return {"at": 1_000 + at}


async def test_readers_and_the_writer_write_each_attempt_once() -> None:
    log, _ = made()
    for at in range(3):
        log.add(subscription("s"), attempt(at), succeeded=True)
    read = await asyncio.gather(log.flush(), log.read(QUEUE, "s"), log.read(QUEUE, "s"))
    assert read[1] == read[2] == [attempt(at) for at in (2, 1, 0)]


@pytest.mark.parametrize("rounds", range(8))
async def test_what_ends_during_a_write_is_written_next(rounds: int) -> None:
    log, _ = made()
    for at in range(20):
        log.add(subscription("s"), attempt(at), succeeded=True)
    writing = asyncio.create_task(log.flush())
    for _ in range(rounds):
        await asyncio.sleep(0)
    log.add(subscription("s"), attempt(20), succeeded=True)
    await writing
    assert await log.read(QUEUE, "s") == [attempt(at) for at in range(20, 0, -1)]


@pytest.mark.parametrize("rounds", range(6))
async def test_a_log_that_is_forgotten_during_a_write_begins_anew(rounds: int) -> None:
    log, _ = made()
    one = subscription("a")
    log.add(one, attempt(1), succeeded=False)
    writing = asyncio.create_task(log.flush())
    for _ in range(rounds):
        await asyncio.sleep(0)
    await log.forget(one)
    await writing
    assert await log.failing_since(one) is None
    assert await log.read(QUEUE, "a") == ()


async def test_the_window_doubles_with_each_round_of_successes_up_to_64() -> None:
    endpoint, windows = Endpoint(), []
    for _ in range(8):
        windows.append(endpoint.window)
        assert all([await endpoint.enter(0) for _ in range(windows[-1])])
        assert not await endpoint.enter(0)
        for _ in range(windows[-1]):
            assert endpoint.window == windows[-1]
            endpoint.leave(True)
    assert windows == [2, 4, 8, 16, 32, 64, 64, 64]


async def test_a_delivery_that_is_cancelled_as_its_place_comes_gives_it_back() -> None:
    endpoint = Endpoint()
    assert await endpoint.enter(0)
    assert await endpoint.enter(0)
    waiting = asyncio.create_task(endpoint.enter(60))
    await asyncio.sleep(0)
    endpoint.leave(None)
    waiting.cancel()
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], BaseException)
    assert await endpoint.enter(0)
    assert not await endpoint.enter(0)


async def test_a_place_that_is_given_back_goes_to_who_waits_longest_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_PATIENCE", 60.0)
    endpoint = Endpoint()
    for _ in range(2):
        assert await endpoint.enter(0)
    waiting = [asyncio.create_task(endpoint.enter(60)) for _ in range(3)]
    await asyncio.sleep(0)
    endpoint.leave(None)
    assert await waiting[0]
    await asyncio.sleep(0.01)
    assert [one.done() for one in waiting] == [True, False, False]
    endpoint.leave(False)  # it does not answer: they are tried later
    assert await asyncio.gather(*waiting) == [True, False, False]


async def test_nobody_waits_long_for_an_endpoint_of_which_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_PATIENCE", 0.0)
    endpoint = Endpoint()
    for _ in range(2):
        assert await endpoint.enter(0)
    for _ in range(2):
        assert not await asyncio.wait_for(endpoint.enter(60), 30)
        endpoint.leave(None)
        assert await endpoint.enter(0)
    endpoint.leave(True)
    assert await endpoint.enter(0)
    waiting = asyncio.create_task(endpoint.enter(60))
    await asyncio.sleep(0.01)
    endpoint.leave(True)
    assert await waiting


async def test_after_five_failures_one_call_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTEST", 0.0)
    endpoint = Endpoint()
    for _ in range(5):
        assert await endpoint.enter(0)
        assert await endpoint.enter(0), "before that, the window counts"
        endpoint.leave(None)
        endpoint.leave(False)
    assert await endpoint.enter(0)
    assert not await endpoint.enter(0)
    endpoint.leave(True)
    assert all([await endpoint.enter(0), await endpoint.enter(0)])


def test_those_without_a_place_come_back_one_by_one() -> None:
    endpoint = Endpoint()
    waits = [endpoint.deferral() for _ in range(1_000)]
    assert 1.0 <= waits[0] < 1.1
    assert 2.5 < waits[-1] < 3.1
    for _ in range(5):
        endpoint.leave(False)
    assert 7.9 < endpoint.deferral() < 12.1  # when the breaker lets a call through


def test_a_host_and_a_queue_are_one_endpoint_each() -> None:
    assert endpoint_of("p", "https://a.example/1") == endpoint_of("p", "https://A.example/2")
    assert endpoint_of("p", "https://a.example/1") != endpoint_of("q", "https://a.example/1")
    assert endpoint_of("p", "queue:full") == endpoint_of("p", "queue:full")
    assert endpoint_of("p", "queue:full") != endpoint_of("p", "queue:other")


INTERNAL = QueueRef("p", "~internal")


@asynccontextmanager
async def working(
    messages: MessageStore, act: Callable[[Message], Awaitable[None]]
) -> AsyncIterator[None]:
    """Work on the internal queue beside the block, and then until nothing is left in it."""
    waiting = LongPolling(messages, most=10, most_per_project=10)
    async with at_work(QueueWorker(INTERNAL, act, messages=messages, long_polling=waiting)):
        yield
        await until(lambda: messages.stats(INTERNAL), lambda found: not found.total)


async def test_what_was_delivered_is_deleted_after_a_deletion_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_PAUSE", 0.01)
    messages, _ = create("memory://", clock=Clock(), options=StoreOptions())
    new = [NewMessage(b"1", 60_000) for _ in range(3)]
    await messages.post(INTERNAL, new, client_id="c", version=None)
    delete, failed = messages.delete, asyncio.Event()

    async def fail_once(*args: Any, **more: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a mistake")
        return await delete(*args, **more)

    async def act(_: Message) -> None:
        return

    monkeypatch.setattr(messages, "delete", fail_once)
    async with working(messages, act):
        await asyncio.wait_for(failed.wait(), 10)


@pytest.mark.parametrize(("count", "size", "most"), [(200, 262_144, 128), (1_000, 1, 400)])
async def test_so_many_messages_are_worked_on_at_a_time(count: int, size: int, most: int) -> None:
    messages, _ = create("memory://", clock=Clock(), options=StoreOptions())
    new = NewMessage(b'"%s"' % (b"x" * size), 60_000)
    for _ in range(count):
        await messages.post(INTERNAL, [new], client_id="c", version=None)
    begun, go_on = 0, asyncio.Event()

    async def act(_: Message) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()

    async with working(messages, act):
        before, used = -1, 0.0
        while begun != before:
            before, used = begun, time.process_time()
            await asyncio.sleep(1)
        assert 0 < begun <= most
        assert time.process_time() - used < 0.3, "who has no room waits for some"
        go_on.set()
    assert begun == count


BODY = b'{"body": "a secret of some length", "ttl": 60}'


class Processes(NamedTuple):
    """Two processes on one store; the near one has the connection."""

    messages: MessageStore
    near: ConnectedSubscribers
    far: ConnectedSubscribers


@pytest.fixture(params=[False, True], ids=["clear", "sealed"])
async def processes(request: pytest.FixtureRequest) -> AsyncIterator[Processes]:
    messages, management = create("memory://", clock=Clock(), options=StoreOptions())
    encryption_keys = (
        EncryptionKeys(management, {"first": b"1" * 32}, Clock()) if request.param else None
    )
    made = [
        ConnectedSubscribers(
            messages, LongPolling(messages, most=10, most_per_project=10), encryption_keys
        )
        for _ in range(2)
    ]
    yield Processes(messages, *made)
    for one in made:
        await one.stop()


def notification(subscriber: str) -> Notification:
    return Notification(subscriber, {}, BODY, {})


async def test_a_letter_is_sent_by_the_process_that_has_the_connection(
    processes: Processes,
) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    def push(body: bytes) -> bool:
        heard.put_nowait(body)
        return True

    subscriber = processes.near.add(push)
    assert (await processes.near.send(notification(subscriber))).status == 200
    assert (await processes.far.send(notification(subscriber))).status == 202
    async with asyncio.timeout(20):
        assert [await heard.get(), await heard.get()] == [BODY, BODY]


async def test_a_connection_that_has_ended_is_gone(processes: Processes) -> None:
    subscriber = processes.near.add(lambda _: True)
    processes.near.remove(subscriber)
    assert (await processes.near.send(notification(subscriber))).status == 410
    slow = processes.near.add(lambda _: False)
    assert (await processes.near.send(notification(slow))).status == 410


async def test_what_waits_for_another_process_is_not_in_the_clear(
    processes: Processes, request: pytest.FixtureRequest
) -> None:
    answer = await processes.far.send(notification("websocket:elsewhere/listener"))
    assert answer.status == 202
    page = await processes.messages.list_messages(process_queue("elsewhere"), ListQuery(10))
    (kept,) = page.messages
    assert (b"a secret" in kept.body) == ("[clear]" in request.node.name)
    assert kept.ttl_ms <= 60_000


def test_projects_are_spread_over_the_lanes() -> None:
    """The notes of one project hold up those of few others."""
    projects = [f"project-{number}" for number in range(50)]
    assert {outbox.outbox_queue(one) for one in projects} == set(outbox.OUTBOX_QUEUES)
    assert {outbox.retry_queue(one) for one in projects} == set(outbox.RETRY_QUEUES)
