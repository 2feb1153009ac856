"""A disk that fails: nothing acknowledged is lost, nothing lost is acknowledged, and it ends.

Syncs fail in `place.sync_data`, the store's edge to the system; everything else in SQLite's own
layer below its files (`disk.py`).
"""

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import pytest

from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.disk import Disk, Hook, failing_at, failing_disk
from tests.drivers.sql.load import Load
from tests.drivers.sql.store import Store
from tests.drivers.store import OTHER, QUEUE, message, texts
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import ListQuery, QueueRef
from zaqar_lite.storage.sql import database, place, queues

pytestmark = pytest.mark.anyio
EIO = OSError(errno.EIO, "Input/output error")
sync_data = place.sync_data


class Syncs:
    """What becomes of the syncs of the log: the next `failing` ones raise `error`."""

    def __init__(self) -> None:
        self.failing = 0
        self.error: BaseException = EIO
        self.before: Callable[[], None] | None = None
        self.count = 0

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        if self.before is not None:
            self.before()
        if self.failing > 0:
            self.failing -= 1
            raise self.error
        sync_data(descriptor)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Let syncs hang while the context lasts, or five seconds."""
        goes_on = threading.Event()

        def hang() -> None:
            goes_on.wait(5)

        self.before = hang
        yield
        goes_on.set()
        self.before = None


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """The syncs of every store of the test."""
    found = Syncs()
    monkeypatch.setattr(place, "sync_data", found)
    monkeypatch.setattr(database, "_RETRY", 0.02)
    return found


async def under_load(
    store: Store, failing: Disk, hook: Hook, seed: int, *besides: Callable[[Load], Awaitable[None]]
) -> None:
    """Let the disk fail by a hook under a load: some is refused, and no promise is broken."""
    load = Load()
    failing.hook = hook
    others = [asyncio.ensure_future(other(load)) for other in besides]
    ends = time.monotonic() + 20  # for longer where the machine is too busy for any refusal
    async with load.on(store, seed=8 * seed):
        await asyncio.sleep(1)
        while not load.refusals and time.monotonic() < ends:  # noqa: ASYNC110 - the test's own poll
            await asyncio.sleep(0.05)
    await asyncio.gather(*others)
    failing.hook = None
    assert load.refusals
    await store.restart()
    assert await load.violations(store) == []


async def work_again(store: Store, *, posts: bool = True) -> None:
    """Wait until the store takes a message again, or where nothing `posts` an empty batch."""
    async with asyncio.timeout(10):
        while True:
            try:
                await store.messages.ping()
                await (store.post("afterwards") if posts else store.db.future())
            except Unavailable:
                await asyncio.sleep(0.01)
            else:
                return


async def test_what_was_not_synced_is_neither_acknowledged_nor_seen(
    store: Store, syncs: Syncs
) -> None:
    (first,) = await store.post("first")
    syncs.failing = 1
    posting = asyncio.create_task(store.post("second"))
    await store.is_syncing()
    # A reader that saw the second message is not answered with it.
    with pytest.raises(Unavailable):
        await store.messages.list_messages(QUEUE, ListQuery(10, include_claimed=True))
    with pytest.raises(Unavailable) as refused:
        await posting
    assert "Input/output error" in str(refused.value)  # for the operator
    assert refused.value.shown == "The store's disk failed."
    assert refused.value.retry_after
    await work_again(store)
    found = await store.bodies(QUEUE)  # it is not known whether the disk took the second
    assert [text for text in found if text != "second"] == ["first", "afterwards"]
    assert [one.id for one in await store.messages.get_messages(QUEUE, [first])] == [first]


async def test_syncs_that_fail_for_a_while(store: Store, syncs: Syncs) -> None:
    await store.post("first", "second")
    claimed = await store.claim(1)
    syncs.failing = 20
    with pytest.raises(Unavailable):
        await store.post("lost")
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: store.messages.list_messages(QUEUE, ListQuery(10)),
        "claim": store.claim,
        "stats": lambda: store.messages.stats(QUEUE),
        "get": lambda: store.messages.get_messages(QUEUE, [claimed.messages[0].id]),
        "post": lambda: store.post("refused"),
        "sweep": lambda: store.messages.sweep(100),
        "purge": lambda: store.messages.purge(QUEUE),
        "ping": store.messages.ping,
        "next_due": lambda: store.next_due(QUEUE),
        "keys": lambda: store.messages.find_idempotency_keys(QUEUE),
        "ranges": lambda: store.messages.stats(QUEUE, ranges=2),
        "release_delayed": lambda: store.messages.release_delayed(QUEUE, 2),
        "queues": lambda: store.management.list_queues("project", limit=5),
        "record": lambda: store.management.get_record("kind", "project", "name"),
    }
    told: dict[str, str] = {}
    assert syncs.failing
    for name, call in reads.items():
        try:
            await call()
        except Unavailable as exc:
            told[name] = exc.shown
        except apsw.Error as exc:
            told[name] = repr(exc)
    assert syncs.failing, "the store was open again before the last call"
    assert told == dict.fromkeys(reads, "The store's disk failed.")
    await work_again(store)
    found = await store.bodies(QUEUE)  # it is not known whether the disk took the third
    assert [text for text in found if text != "lost"] == ["first", "second", "afterwards"]
    assert texts(await store.claim()) == found[1:]


async def test_a_sync_fails_behind_what_was_copied_already(
    store: Store, monkeypatch: pytest.MonkeyPatch, syncs: Syncs
) -> None:
    """A copy takes along what was committed meanwhile: SQLite syncs that by itself."""
    monkeypatch.setattr(place, "_COPY_AT", 0)
    load = Load()
    failing = threading.Event()

    def let_it_be_copied() -> None:
        if failing.is_set():
            failing.clear()
            time.sleep(0.05)  # the copying thread goes on
            syncs.failing = 1

    syncs.before = let_it_be_copied
    async with load.on(store):
        for _ in range(15):
            await asyncio.sleep(0.05)
            failing.set()
    syncs.before = None
    syncs.failing = 0
    await work_again(store)
    load.begun.add("afterwards")
    assert await load.violations(store) == []


async def test_what_a_disk_lost_of_the_log_does_not_come_into_the_file(
    store: Store, syncs: Syncs
) -> None:
    """After a failed sync the system may read anything where it had no time to write."""
    ids = await store.post(*[message("x" * 500)] * 500)

    def lose() -> None:
        syncs.before = None
        with store.place.file.with_name(f"{place.FILE_NAME}-wal").open("r+b") as wal:
            wal.seek(store.place.synced)
            wal.write(bytes(store.place.wal_bytes - store.place.synced))

    syncs.before, syncs.failing = lose, 1
    with pytest.raises(Unavailable):
        await store.messages.delete(QUEUE, ids, claim_ids=None)
    await work_again(store)
    await check_database(store.db)
    assert len(await store.bodies(QUEUE)) == 501


@pytest.mark.parametrize("written", [20, 40])
async def test_a_sync_fails_and_then_the_file_too(
    written: int, tmp_path: Path, syncs: Syncs
) -> None:
    """Opening the file again copies the log: what stops half-way must not leave a mixture."""
    left = written

    def fail(kind: str, done: str) -> None:
        nonlocal left
        if (kind, done) == ("file", "write"):
            left -= 1
            if left < 0:
                raise apsw.IOError("broken")

    with failing_disk() as failing:
        async with Store(tmp_path / "data") as store:
            ids = await store.post(*[message("x" * 500)] * 2_000)
            await store.restart()
            failing.hook = fail
            syncs.failing = 1
            with pytest.raises(Unavailable):
                await store.messages.delete(QUEUE, ids[::3], claim_ids=None)
            async with asyncio.timeout(10):
                while left >= 0:  # noqa: ASYNC110 - another thread counts
                    await asyncio.sleep(0.001)
            failing.hook = None
            await work_again(store)
            await check_database(store.db)
            assert len(await store.bodies(QUEUE)) in {2_001, 2_001 - len(ids[::3])}


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError])
async def test_a_commit_that_fails(disk: tuple[Store, Disk], error: type[apsw.Error]) -> None:
    store, failing = disk
    await store.post("first")

    failing.hook = failing_at(("wal", "write"), error)
    answers = await asyncio.gather(
        *[store.post(f"lost {number}") for number in range(5)],
        store.claim(),
        return_exceptions=True,
    )
    failing.hook = None
    assert [type(one) for one in answers] == [Unavailable] * 6
    assert "disk" in str(answers[0])
    await store.post("last")
    assert texts(await store.claim()) == ["first", "last"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("hook", "cache"),
    [
        pytest.param((("wal", "write"), apsw.FullError, 37), None, id="commits"),
        pytest.param((("any", "read"), apsw.IOError, 199), 10, id="reads"),
        # With a small cache SQLite writes in the middle of a batch, also where counts are written.
        pytest.param((("wal", "write"), apsw.FullError, 61), 10, id="statements"),
    ],
)
async def test_a_disk_that_fails_now_and_then_under_load(
    hook: tuple[tuple[str, str], type[apsw.Error], int],
    cache: int | None,
    seed: int,
    disk: tuple[Store, Disk],
) -> None:
    store, failing = disk

    async def look_around(load: Load) -> None:
        while not load.is_over:
            with contextlib.suppress(Unavailable):
                await store.messages.sweep(100)
                _ = [ref async for ref in store.messages.nonempty_queues()]
            await asyncio.sleep(0)

    if cache is not None:
        store.db.connection.pragma("cache_size", cache)
    await under_load(store, failing, failing_at(*hook), seed, look_around)


async def test_the_file_can_not_be_opened_again_at_first(
    disk: tuple[Store, Disk], syncs: Syncs, caplog: pytest.LogCaptureFixture
) -> None:
    store, failing = disk
    await store.post("first")
    opened = 0

    def fail(kind: str, done: str) -> None:
        nonlocal opened
        if (kind, done) == ("file", "open"):
            opened += 1
            raise apsw.CantOpenError

    failing.hook = fail
    syncs.failing = 1
    with pytest.raises(Unavailable):
        await store.post("lost")
    with pytest.raises(Unavailable):
        await store.messages.ping()
    async with asyncio.timeout(10):
        while opened < 3:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.01)
    failing.hook = None
    await work_again(store)
    found = await store.bodies(QUEUE)
    assert [text for text in found if text != "lost"] == ["first", "afterwards"]
    assert caplog.text.count("the store can't be opened again yet") == 1
    assert "the store is open again" in caplog.text


async def test_a_commit_task_that_dies_fails_its_waiters(store: Store, syncs: Syncs) -> None:
    await store.post("first")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # nobody awaits the task
    syncs.failing, syncs.error = 1, RuntimeError("a mistake of ours")
    async with asyncio.timeout(5):
        answers = await asyncio.gather(
            store.post("second"), store.post("third"), return_exceptions=True
        )
        assert [type(one) for one in answers] == [Unavailable, Unavailable]
    await work_again(store)
    assert "first" in await store.bodies(QUEUE)


@pytest.mark.parametrize(("failing", "waits"), [(1, 0), (3, 0), (10_000, 0), (10_000, 1)])
async def test_closing_while_syncs_fail(
    tmp_path: Path, syncs: Syncs, failing: int, waits: int
) -> None:
    store = Store(tmp_path / "data")
    await store.messages.open()
    await store.post("first")
    syncs.failing = failing
    posting = [asyncio.create_task(store.post(f"lost {number}")) for number in range(3)]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        if waits:  # until it is known that the disk fails
            await asyncio.wait(posting)
        await store.messages.close()
        answers = await asyncio.gather(*posting, return_exceptions=True)
    assert {type(one) for one in answers} <= {Unavailable, list}
    syncs.failing = 0
    async with store:
        await store.post("last")
        found = await store.bodies()
        assert [text for text in found if not text.startswith("lost")] == ["first", "last"]
        await check_database(store.db)


async def test_nobody_waits_at_the_gate_for_a_store_that_can_not_be_opened(
    store: Store, monkeypatch: pytest.MonkeyPatch, syncs: Syncs
) -> None:
    monkeypatch.setattr(place, "_RESTART_AT", 0)
    await store.post("first")
    syncs.failing = 10_000
    with pytest.raises(Unavailable):
        await store.post("lost")
    async with asyncio.timeout(2):
        with pytest.raises(Unavailable):
            await store.claim()
    syncs.failing = 0
    await work_again(store)


LAST = QueueRef("project-9", "queue-99999")
CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "claim": lambda store: store.claim(queue=LAST),
    "pop": lambda store: store.claim(queue=LAST, removes=True),
    "stats": lambda store: store.messages.stats(LAST),
    "post": lambda store: store.post("text", to=LAST),
    "next_due": lambda store: store.next_due(LAST),
    "release_delayed": lambda store: store.messages.release_delayed(LAST, 1),
    "list": lambda store: store.bodies(LAST),
}


@pytest.mark.parametrize("size", [0, 300])
@pytest.mark.parametrize("call", CALLS)
async def test_any_read_that_fails_while_a_batch_gathers(
    call: str, size: int, disk: tuple[Store, Disk]
) -> None:
    """An error of the disk may end the transaction: the batch must not go on without it.

    Also where the row of a queue that is not there is what can't be read.
    """
    store, failing = disk
    for number in range(40):
        refs = [QueueRef(f"project-{number}", f"queue-{one}") for one in range(50)]
        await asyncio.gather(*[store.post("text", to=ref) for ref in refs])
    await store.post(*["x" * 1_000] * size, to=LAST)
    await store.restart()  # so that its pages have to be read
    posting = asyncio.create_task(store.post("before", to=QueueRef("project-0", "queue-0")))
    await asyncio.sleep(0)
    assert store.db.connection.in_transaction
    failing.hook = failing_at(("any", "read"), apsw.IOError)
    with pytest.raises(Unavailable):
        await CALLS[call](store)
    failing.hook = None
    with contextlib.suppress(Unavailable):
        await store.post("after", to=QueueRef("project-0", "queue-0"))
    with contextlib.suppress(Unavailable):
        await posting
    await store.restart()


async def test_a_disk_that_hangs(
    store: Store, monkeypatch: pytest.MonkeyPatch, syncs: Syncs
) -> None:
    """Who waits is told after a while, whoever comes is told at once, and then it goes on."""
    await store.post("first")
    monkeypatch.setattr(database, "PATIENCE", 0.1)
    with syncs.hanging():
        begun = time.perf_counter()
        posting = [asyncio.create_task(store.post(f"perhaps {number}")) for number in range(2)]
        await asyncio.sleep(0.02)
        posting.append(asyncio.create_task(store.post("perhaps too")))
        answers = await asyncio.gather(*posting, return_exceptions=True)
        assert [type(one) for one in answers] == [Unavailable] * 3
        with pytest.raises(Unavailable, match="has not answered"):
            await store.post("never")
        with pytest.raises(Unavailable):
            await store.messages.ping()
        assert time.perf_counter() - begun < 3
    await work_again(store)
    found = await store.bodies(QUEUE)
    assert "never" not in found
    assert {"first", "afterwards"} <= set(found)


async def create(store: Store, queue: QueueRef = QUEUE) -> None:
    await store.management.create_queue(queue, {}, max_queues=9)


async def drop(store: Store) -> None:
    await store.messages.purge(QUEUE, forget=True)


@pytest.mark.parametrize("is_next_begun", [False, True])
@pytest.mark.parametrize("change", [create, drop])
@pytest.mark.parametrize("call", ["list", "stats", "get", "record", "queues"])
async def test_nobody_sees_a_queue_or_its_drop_before_it_is_durable(
    store: Store,
    syncs: Syncs,
    change: Callable[[Store], Awaitable[None]],
    call: str,
    *,
    is_next_begun: bool,
) -> None:
    """Else a queue that was gone comes back where the disk fails; also as a next batch begins."""
    first = ""
    if change is drop:
        await create(store)
        (first,) = await store.post("first")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: store.messages.list_messages(QUEUE, ListQuery(10)),
        "stats": lambda: store.messages.stats(QUEUE),
        "get": lambda: store.messages.get_messages(QUEUE, [first]),
        "record": lambda: store.management.get_queue(QUEUE),
        "queues": lambda: store.management.list_queues(QUEUE.project, limit=9),
    }
    with syncs.hanging():
        changing = [asyncio.ensure_future(change(store))]
        await store.is_syncing()
        if is_next_begun:
            changing.append(asyncio.ensure_future(create(store, OTHER)))
            await asyncio.sleep(0)
        reading = asyncio.ensure_future(calls[call]())
        await asyncio.sleep(0.05)
        is_early = reading.done()
    await asyncio.gather(*changing)
    await reading
    assert not is_early


async def test_a_queue_that_is_not_durable_stays_in_memory(
    store: Store, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who reads it could not know that its batch is still to be waited for."""
    monkeypatch.setattr(queues, "MOST_IN_MEMORY", 1)
    await store.post("first", to=OTHER)
    with syncs.hanging():
        posting = asyncio.create_task(store.post("second"))
        await asyncio.sleep(0)
        store.db.write_queues()  # as a sweep does in the middle of a batch
        await store.is_syncing()
        reading = asyncio.create_task(store.bodies(QUEUE))
        await asyncio.sleep(0.05)
        is_early = reading.done()
    await posting
    assert await reading == ["second"]
    assert not is_early
