"""Counters that processes share, the depths of queues, and what came through lately."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.service.test_quotas import Time
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import (
    NO_RETRIES,
    ClaimRequest,
    DelayMode,
    Message,
    QueueRef,
    Stats,
    StoreOptions,
)
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.service.metrics import queue_depths as recent
from zaqar_lite.service.metrics.instrumented_store import instrumented
from zaqar_lite.service.metrics.queue_depths import Rates, RecentRates, Sample
from zaqar_lite.service.metrics.shared_counters import (
    MetricFamilies,
    Place,
    Row,
    SharedCounters,
    make_file,
)
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio


@pytest.fixture
def path() -> Path:
    """The file of a board of two rows of three cells."""
    return make_file(2, 3)


def at(path: Path, own: int) -> SharedCounters:
    board = SharedCounters(Place(path, 2, own))
    board.lay_out(3)
    return board


def test_rows_are_added_up_and_taken_over(path: Path) -> None:
    try:
        one, other = at(path, 0), at(path, 1)
        one.row.cells[:] = [1, 2, 3]
        other.row.cells[:] = [10, 20, 30]
        other.publish()
        assert one.sums(largest=(2,)) == [11, 22, 30]
        assert at(path, 1).row.cells == [10, 20, 30]
    finally:
        path.unlink()


def test_a_process_counts_alone_where_the_file_is_gone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What tidies up a temporary directory must not keep workers from being replaced."""
    path.unlink()
    with caplog.at_level(logging.WARNING):
        board = at(path, 0)
    assert str(path) in caplog.text
    board.row.cells[0] = 5
    board.write({"at": 1})
    assert (board.is_shared, board.sums(), board.read()) == (False, [5, 0, 0], {"at": 1})


QUEUE = QueueRef("p", "q")


async def post(store: MessageStore, queue: QueueRef, count: int) -> None:
    new = [NewMessage(b"1", 3_600_000) for _ in range(count)]
    await store.post(queue, new, client_id="c", version=None)


async def test_a_scrape_waits_for_a_short_count_of_sixteen_queues_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent, "_STEP", 30.0)
    store, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
    for number in range(20):
        await post(store, QueueRef("p", f"q{number}"), 3)
    stats, counted, most = store.stats, 0, 0

    async def slowly(queue: QueueRef) -> Stats:
        nonlocal counted, most
        counted += 1
        most = max(most, counted)
        await asyncio.sleep(0)
        counted -= 1
        return await stats(queue)

    monkeypatch.setattr(store, "stats", slowly)
    counters = SharedCounters(None)
    counters.write({"at": time.time() + 3_600})  # from before the machine's clock was set back
    found = await recent.QueueDepths(store, management, counters).latest()
    assert (found["queues"], found["totals"]) == (20, [60, 0, 0])
    assert most == 16


@pytest.mark.parametrize(
    ("ready", "due", "told", "since"),
    [
        *((1, None, None, 50), (1, 60, None, 60), (1, 60, 65, 65), (0, 60, None, None)),
        (1, 90, None, 70),  # its delay was switched off
    ],
)
def test_since_when_the_first_message_is_ready(
    ready: int, due: int | None, told: int | None, since: int | None
) -> None:
    oldest = Message("m", 1, b"1", 1_000, 50, 1_050, 70, delay_expires_at=due)
    depth = recent.depth_of(Stats(ready=ready, oldest=oldest, ready_since=told))
    assert (depth.since, depth.age(1_070)) == (since, 0 if since is None else (1_070 - since) / 1e3)


async def test_keeps_an_hour_of_what_is_looked_at_and_forgets_the_rest() -> None:
    store, _ = create_stores("memory://", clock=Clock(), options=StoreOptions())
    time = Time()
    kept = RecentRates(store, time)
    assert kept.look(QUEUE, Stats(ready=0)) == [Sample(0, 0, 0, 0)]
    for _ in range(70):
        time.now += 60
        await post(store, QUEUE, 1)
        if time.now < 1_200 + 3_600:
            await kept.sample()
    seen = kept.look(QUEUE, await store.stats(QUEUE))
    assert seen[0] == Sample(59, 11, 0, 0)
    assert seen[-2:] == [Sample(11, 59, 0, 0), Sample(0, 70, 0, 0)]
    time.now += 3_600
    await kept.sample()
    assert kept.look(QUEUE, Stats(ready=7)) == [Sample(0, 7, 0, 0)]


async def test_counts_few_queues_and_those_that_were_looked_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent, "MOST", 2)
    store, _ = create_stores("memory://", clock=Clock(), options=StoreOptions())
    time = Time()
    kept = RecentRates(store, time)
    one, two, three = (QueueRef("p", name) for name in ("one", "two", "three"))
    for queue in (one, two, one, three):
        kept.look(queue, Stats(ready=1))
    time.now += 60
    await kept.sample()
    assert [len(kept.look(queue, Stats())) for queue in (one, three, two)] == [2, 2, 1]
    assert set(kept.flows) == {three, two}


async def test_rates_are_of_what_came_through_since_a_queue_was_looked_at() -> None:
    store, _ = create_stores("memory://", clock=Clock(), options=StoreOptions())
    families, row = MetricFamilies(), Row()
    row.cells = [0] * families.size
    counted = instrumented(store, families, row)
    time = Time()
    kept = RecentRates(store, time)
    kept.flows = row.flows
    await post(counted, QUEUE, 3)
    assert row.flows == {}
    kept.look(QUEUE, Stats())
    assert kept.rates(QUEUE) is None
    await post(counted, QUEUE, 1)
    await post(counted, QUEUE, 5)
    await post(counted, QueueRef("p", "other"), 5)
    keyed = [NewMessage(b"1", 3_600_000, idempotency_key=IdempotencyKey("k", b"d"))]
    for _ in range(2):
        await counted.post(QUEUE, keyed, client_id="c", version=None)
    request = ClaimRequest(4, None, DelayMode.IGNORE, ttl_ms=60_000, grace_ms=60_000, client_id="c")
    held = await counted.claim(QUEUE, request)
    one, two, three, _ = (message.id for message in held.messages)
    await counted.delete(QUEUE, [one, two], claim_ids=[held.claim_id or ""])
    settlements = [Settlement(three, Act.ACK)]
    await counted.settle(QUEUE, held.claim_id or "", settlements, retries=NO_RETRIES)
    assert len((await counted.claim(QUEUE, replace(request, removes=True))).messages) == 4
    time.now += 6
    assert kept.rates(QUEUE) is None
    time.now += 24
    assert kept.rates(QUEUE) == Rates(30.0, posted=14.0, claimed=16.0, deleted=14.0)
    for _ in range(20):
        time.now += 60
        await post(counted, QUEUE, 2)
        for _ in range(2):
            await kept.sample()
    assert kept.rates(QUEUE) == Rates(300.0, posted=2.0, claimed=0.0, deleted=0.0)
    time.now += 3_660
    await kept.sample()
    assert row.flows == {}
    assert kept.rates(QUEUE) is None
