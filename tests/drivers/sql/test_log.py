"""The write-ahead log under load: its length, readers from elsewhere, and who waits for whom."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, QUEUE
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.sql import place

pytestmark = pytest.mark.anyio
MIB = 1 << 20
LONG_GAP = 0.25
"""Seconds for which the event loop may stand still; `python -m tests.sql_bars` measures it."""


async def grow(store: Store, beyond: int) -> None:
    """Post until the log is longer than that."""
    async with asyncio.timeout(30):
        while store.place.wal_bytes <= beyond:
            await store.post(*["x" * 1_000] * 200)


async def cycles(store: Store, count: int, queue: QueueRef = QUEUE) -> None:
    """Post, claim and acknowledge, by turns."""
    for _ in range(count):
        await store.post(*["x" * 1_000] * 20, to=queue)
        await store.acknowledge(await store.claim(20, queue=queue), queue=queue)


@pytest.mark.parametrize(
    "begins",
    [
        0,
        3 * MIB,
    ],
    ids=["from the beginning", "later"],
)
async def test_a_reader_that_stays_is_told_of_once(
    begins: int, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(place, "_RESTART_AT", MIB if not begins else 4 * MIB)
    monkeypatch.setattr(place, "_COPY_AT", MIB // 4)
    monkeypatch.setattr(place, "LONG_WAL", 5 * MIB)
    await store.post("first")
    if begins:
        await grow(store, begins)
    reader = place.connect(str(store.place.file))
    reader.execute("BEGIN")
    seen = reader.execute("SELECT count(*) FROM entry").get
    await grow(store, 8 * MIB)
    assert reader.execute("SELECT count(*) FROM entry").get == seen
    reader.close(force=True)
    await cycles(store, 200)
    assert store.place.wal_bytes < 5 * MIB, "the log did not shrink"
    warnings = [one for one in caplog.messages if "keeps a transaction open" in one]
    assert len(warnings) == 1


def time_in_line() -> float:
    """Seconds for which this thread could have run while others had the CPU; Linux tells."""
    counts = Path("/proc/thread-self/schedstat")
    return int(counts.read_text(encoding="ascii").split()[1]) / 1e9 if counts.exists() else 0.0


async def test_the_log_stays_short_and_the_loop_runs_on(store: Store) -> None:
    longest_log, gaps = 0, [0.0]
    over = asyncio.Event()

    async def watch() -> None:
        nonlocal longest_log
        before = time.perf_counter() - time_in_line()
        while not over.is_set():
            await asyncio.sleep(0)
            now = time.perf_counter() - time_in_line()
            gaps.append(now - before)
            before = now
            longest_log = max(longest_log, store.place.wal_bytes)

    watching = asyncio.create_task(watch())
    queues = [QueueRef(f"project-{number % 4}", f"queue-{number}") for number in range(8)]
    await asyncio.gather(*[cycles(store, 60, queue) for queue in queues])
    over.set()
    await watching
    print(f"longest log {longest_log / MIB:.1f} MiB, longest gap {max(gaps) * 1_000:.1f} ms")
    assert longest_log <= 64 * MIB
    assert max(gaps) < LONG_GAP


async def test_nobody_waits_for_a_greedy_project(store: Store) -> None:
    """Without shares the modest project waits 59 times as long as alone."""

    async def modest() -> list[float]:
        took = []
        for _ in range(150):
            begun = time.perf_counter()
            await store.post("text", to=QueueRef("modest", "queue"))
            took.append(time.perf_counter() - begun)
            await asyncio.sleep(0.002)
        return sorted(took)

    over = asyncio.Event()

    async def greedy(number: int) -> None:
        while not over.is_set():
            await store.post(*["text"] * 100, to=QueueRef("greedy", f"queue-{number}"))

    alone = await modest()
    tasks = [asyncio.create_task(greedy(number)) for number in range(32)]
    beside = await modest()
    over.set()
    await asyncio.gather(*tasks)
    ratios = [beside[at] / alone[at] for at in (75, 140)]
    print(f"the modest project waited {ratios[0]:.1f} (p50) and {ratios[1]:.1f} (p93) times")
    assert ratios[1] < 30


async def test_copies_of_a_large_post_share_the_pages_of_their_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside another project each batch takes a few copies: message by message it was 20 MiB."""
    monkeypatch.setattr(place, "_RESTART_AT", 1 << 40)
    receivers = [QueueRef("project", f"receiver-{number}") for number in range(100)]
    copies = tuple(Copy(one, HOUR, 0, 100) for one in receivers)
    large = [NewMessage(b"1", HOUR, copies=copies)] * 20
    async with Store(tmp_path / "data") as store:
        over = asyncio.Event()

        async def modest() -> None:
            while not over.is_set():
                await store.post("text", to=QueueRef("modest", "queue"))

        beside = asyncio.create_task(modest())
        for _ in range(5):  # until each queue has pages of its own, and batches are shared
            before = store.place.wal_bytes
            await store.post(*large)
        written = store.place.wal_bytes - before
        over.set()
        await beside
        assert (await store.messages.stats(receivers[-1])).total == 100
    print(f"{written / MIB:.1f} MiB of the log")
    assert written < 8 * MIB
