"""Full disks, I/O errors and damaged files, met by the real server and by the store itself."""

import asyncio
import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from zaqar_lite.storage.opendata.sqlite.writer import table_of

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import flip_in_row, place_of
from tests.server import ServerProcess
from tests.services.process import missing
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import DelayMode, QueueRef, Selection, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.opendata import database
from zaqar_lite.storage.opendata.engine import Batch, Engine
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine
from zaqar_lite.storage.opendata.sqlite import SqliteEngine
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio
HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-Id": "disk"}
QUEUE = QueueRef("disk", "queue")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes writes fail, compiled for this run."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        missing("a C compiler", "the tests of I/O errors preload a small library")
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    source = Path(__file__).parent / "faults.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True
    )
    return library


class Faulty:
    """A server whose writes can be made to fail."""

    def __init__(self, shim: Path, uri: str, path: str, home: Path) -> None:
        self.trigger = home / "fault"
        self.server = ServerProcess(
            uri,
            env={
                "LD_PRELOAD": str(shim),
                "FAULT_FILE": str(self.trigger),
                "FAULT_PATH": path,
            },
        )
        self.posted: list[str] = []

    def post(self) -> httpx.Response:
        text = f"message-{uuid.uuid4()}"
        answer = httpx.post(
            f"{self.server.url}/v2/queues/queue/messages",
            headers=HEADERS,
            json={"messages": [{"body": text}]},
            timeout=40,
        )
        if answer.status_code == 201:
            self.posted.append(text)
        return answer

    def listed(self) -> list[str]:
        answer = httpx.get(
            f"{self.server.url}/v2/queues/queue/messages?echo=true", headers=HEADERS, timeout=40
        )
        answer.raise_for_status()
        return [message["body"] for message in answer.json()["messages"]]


@pytest.fixture(params=["opendata+sqlite", "opendata+slatedb"])
def faulty(request: pytest.FixtureRequest, shim: Path, tmp_path: Path) -> Iterator[Faulty]:
    path = "queue.sqlite3" if request.param == "opendata+sqlite" else "/slatedb"
    server = Faulty(shim, f"{request.param}://{tmp_path / 'data'}", path, tmp_path)
    try:
        server.server.start()
        yield server
    finally:
        server.server.kill()
        server.server.close()


def test_an_io_error_refuses_writes_until_the_server_starts_again(faulty: Faulty) -> None:
    for _ in range(3):
        assert faulty.post().status_code == 201
    faulty.trigger.write_text("EIO")
    refused = faulty.post()
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert faulty.listed() == faulty.posted
    faulty.trigger.unlink()
    time.sleep(1.1)  # for so long writes are refused after any failure
    assert faulty.post().status_code == 503  # what became of the failed write is unknown
    faulty.server.kill()
    faulty.server.start()
    assert set(faulty.posted) <= set(faulty.listed())
    assert faulty.post().status_code == 201


def test_every_post_waits_for_a_sync(faulty: Faulty) -> None:
    """A kill does not show this, only a loss of power: the system keeps what was written."""
    assert faulty.post().status_code == 201
    faulty.trigger.write_text("SYNC")
    assert faulty.post().status_code == 503


def test_a_full_disk_refuses_writes_until_there_is_room(shim: Path, tmp_path: Path) -> None:
    faulty = Faulty(shim, f"embedded://{tmp_path / 'data'}", "queue.sqlite3", tmp_path)
    with faulty.server:
        assert faulty.post().status_code == 201
        faulty.trigger.write_text("ENOSPC")
        refused = faulty.post()
        assert refused.status_code == 503
        assert "full" in refused.json()["description"]
        assert str(tmp_path) not in refused.text  # that is for the log, not for clients
        assert faulty.listed() == faulty.posted
        faulty.trigger.unlink()
        deadline = time.monotonic() + 90
        while faulty.post().status_code != 201:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert faulty.listed() == faulty.posted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode:
        missing("the right to mount a tmpfs", mounted.stderr.decode())
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=False)


def stores(uri: str, clock: Clock | None = None) -> OpenDataMessageStore:
    messages, _ = create_stores(uri, clock=clock or Clock(), options=StoreOptions())
    assert isinstance(messages, OpenDataMessageStore)
    return messages


async def post(store: MessageStore, text: str) -> str:
    posted = await store.post(
        QUEUE, [NewMessage(json.dumps(text).encode(), 3_600_000)], client_id="c", version=None
    )
    return posted[0].id


async def bodies(store: MessageStore) -> list[str]:
    found: list[str] = []
    marker = None
    while True:
        page = await store.list_messages(
            QUEUE, Selection(marker=marker, limit=100, include_claimed=True, include_delayed=True)
        )
        if not page.messages:
            return found
        found += [json.loads(message.body) for message in page.messages]
        marker = None if page.marker is None else Marker(page.marker)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a hanging disk as long as a server does."""
    monkeypatch.setattr(Engine, "patience", 2.0)
    monkeypatch.setattr(database, "_LAST_BATCH", 1.0)


@pytest.mark.parametrize("scheme", ["embedded", "opendata+slatedb"])
async def test_a_disk_that_fills_up_loses_nothing(
    scheme: str, small_disk: Path, impatience: None
) -> None:
    uri = f"{scheme}://{small_disk / 'data'}"
    store = stores(uri)
    posted: list[str] = []
    async with store:
        with pytest.raises(Unavailable, match="full"):
            await fill(store, posted)
        assert posted
        if scheme == "embedded":  # SlateDB goes on trying to write the last one
            assert await bodies(store) == posted
        with pytest.raises(Unavailable):
            await post(store, "refused")
    give_room(small_disk)  # SlateDB cannot even be opened without
    async with stores(uri) as again:
        assert (await bodies(again))[: len(posted)] == posted
        await post(again, "room")


def use_up(disk: Path) -> None:
    with (disk / "fill").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4_096))


@pytest.mark.parametrize("scheme", ["embedded", "opendata+slatedb"])
async def test_a_first_start_on_a_full_disk_says_so(scheme: str, small_disk: Path) -> None:
    use_up(small_disk)
    store = stores(f"{scheme}://{small_disk / 'data'}")
    with pytest.raises(ConfigurationError, match="its disk is full: free some space"):
        await store.open()
    (small_disk / "fill").unlink()
    async with store:
        await post(store, "room")


@pytest.mark.parametrize("scheme", ["embedded", "opendata+slatedb"])
async def test_a_start_on_a_full_disk_says_so_and_loses_nothing(
    scheme: str, small_disk: Path
) -> None:
    uri = f"{scheme}://{small_disk / 'data'}"
    async with stores(uri) as store:
        await post(store, "kept")
    use_up(small_disk)
    with pytest.raises(ConfigurationError, match="its disk is full: free some space"):
        await stores(uri).open()
    (small_disk / "fill").unlink()
    async with stores(uri) as again:
        assert await bodies(again) == ["kept"]


async def test_what_waits_for_room_is_whole_once_it_is_stored(
    small_disk: Path, impatience: None
) -> None:
    posted: list[str] = []
    async with stores(f"opendata+slatedb://{small_disk / 'data'}") as store:
        with pytest.raises(Unavailable, match="full"):
            await fill(store, posted)
        for asked in (post(store, "refused"), store.ping(), bodies(store)):
            with pytest.raises(Unavailable, match="full"):
                await asked
        give_room(small_disk)
        for _ in range(300):
            if await is_posted(store, "later"):
                break
            await asyncio.sleep(0.1)
        found = await bodies(store)
        assert found[: len(posted)] == posted
        assert "refused" not in found
        assert found[-1] == "later"
        await check_database(store._db)


async def is_posted(store: MessageStore, text: str) -> bool:
    try:
        await post(store, text)
    except Unavailable:
        return False
    return True


def give_room(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)


async def fill(store: MessageStore, posted: list[str]) -> None:
    for number in range(1_000):
        text = f"{number}-{'x' * 20_000}"
        await post(store, text)
        posted.append(text)


async def test_a_large_batch_is_handed_to_slatedb_in_parts(tmp_path: Path) -> None:
    engine = SlateDbEngine.in_directory(tmp_path / "data" / "slatedb")
    tmp_path.joinpath("data").mkdir()
    await engine.open()
    longest, before = 0.0, time.thread_time()  # a busy machine takes no part in it

    async def watch() -> None:
        nonlocal longest, before
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    started = time.thread_time()
    await engine.commit(Batch({b"key-%d" % number: bytes(100) for number in range(20_000)}, ()))
    took = time.thread_time() - started
    watcher.cancel()
    assert longest < took / 3
    found = await engine.get([b"key-0", b"key-19999"])
    assert len(found) == 2
    await engine.close()


async def written(uri: str, count: int) -> list[str]:
    texts = [f"text-{number}-{'y' * 100}" for number in range(count)]
    async with stores(uri) as store:
        for text in texts:
            await post(store, text)
    return texts


async def test_a_damaged_payload_is_named_and_the_rest_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"embedded://{tmp_path / 'data'}"
    texts = await written(uri, 5)
    flip(tmp_path / "data", keys.prefix(RecordType.PAYLOAD), which=2)
    async with stores(uri) as store:
        assert await bodies(store) == [*texts[:2], *texts[3:]]
        claimed = await store.claim(
            QUEUE,
            Take(10, None, DelayMode.IGNORE, ttl_ms=60_000, client_id="c"),
        )
        assert [json.loads(message.body) for message in claimed.messages] == [
            *texts[:2], *texts[3:],
        ]  # fmt: skip
        assert (await store.stats(QUEUE)).total == 5  # it is still there, set aside
    assert "payload of message" in caplog.text


async def test_a_value_that_became_another_type_is_named_and_the_rest_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a flipped bit in the head of SQLite's row does."""
    uri = f"embedded://{tmp_path / 'data'}"
    texts = await written(uri, 5)
    key = rows(tmp_path / "data", keys.prefix(RecordType.PAYLOAD))[2][0]
    name, place = place_of(key)
    with sqlite3.connect(tmp_path / "data" / "queue.sqlite3") as database:
        database.execute(f"UPDATE {name} SET v = 'text' WHERE k = ?", (place,))  # noqa: S608 - a name of ours
    database.close()
    async with stores(uri) as store:
        assert await bodies(store) == [*texts[:2], *texts[3:]]
    assert "payload of message" in caplog.text


async def test_what_only_can_not_be_read_now_is_not_taken_for_damaged(tmp_path: Path) -> None:
    """A stopped process that holds SQLite's lock is enough; a message set aside stays so."""
    uri = f"embedded://{tmp_path / 'data'}"
    texts = await written(uri, 5)
    async with stores(uri) as store:
        engine = store._db.engine
        assert isinstance(engine, SqliteEngine)
        connection = engine._reader._connection
        assert connection is not None
        connection.set_progress_handler(lambda: 1, 1)  # SQLite ends every statement at once
        with pytest.raises(Unavailable, match="can't read now"):
            await bodies(store)
        with pytest.raises(Unavailable, match="can't read now"):
            _ = [chunk async for chunk in engine.scan(b"", b"\xff")]
        connection.set_progress_handler(None, 0)
        assert await bodies(store) == texts


async def test_a_damaged_page_is_named_and_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was in it is known from the log and goes into another page."""
    uri = f"embedded://{tmp_path / 'data'}"
    texts = await written(uri, 300)
    flip(tmp_path / "data", keys.prefix(RecordType.ACTIVE), which=0)
    before = rows(tmp_path / "data", keys.prefix(RecordType.ACTIVE))[0]
    async with stores(uri) as store:
        assert await bodies(store) == texts
        assert "active of queue" in caplog.text
        await post(store, "new")
        assert await bodies(store) == [*texts, "new"]
    assert rows(tmp_path / "data", keys.prefix(RecordType.ACTIVE))[0] == before


async def test_damaged_metadata_is_named_and_the_rest_is_listed_to_other_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose a message is stands in the log only, once the store was opened again."""
    uri = f"embedded://{tmp_path / 'data'}"
    texts = await written(uri, 5)
    flip(tmp_path / "data", keys.log_prefix(1), which=2)
    async with stores(uri) as store, asyncio.timeout(10):
        page = await store.list_messages(QUEUE, Selection(limit=10, exclude_client_id="another"))
        assert [json.loads(message.body) for message in page.messages] == [*texts[:2], *texts[3:]]
        mine = await store.list_messages(QUEUE, Selection(limit=10, exclude_client_id="c"))
        assert not mine.messages
    assert "metadata" in caplog.text


def rows(directory: Path, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
    table = table_of(prefix)
    name = "kv" if table is None else table.name
    with sqlite3.connect(directory / "queue.sqlite3") as database:
        found = database.execute(f"SELECT k, v, c FROM {name} ORDER BY k").fetchall()  # noqa: S608 - a name of ours
    database.close()
    if table is not None:
        return [(table.key(number), value, checksum) for number, value, checksum in found]
    return [row for row in found if row[0].startswith(prefix)]


def flip(directory: Path, prefix: bytes, which: int) -> None:
    flip_in_row(directory, rows(directory, prefix)[which][0])


async def test_damage_inside_the_write_ahead_log_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"embedded://{tmp_path / 'data'}"
    async with stores(uri) as store:
        for number in range(20):
            await post(store, f"text-{number}")
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "data", copy)
    wal = copy / "queue.sqlite3-wal"
    data = bytearray(wal.read_bytes())
    data[len(data.rstrip(b"\x00")) // 2] ^= 0xFF  # the log is longer than what is in it
    wal.write_bytes(data)
    (copy / "queue.sqlite3-shm").unlink(missing_ok=True)
    (copy / "lock").unlink()
    async with stores(f"embedded://{copy}") as store:
        found = await bodies(store)
    assert found == [f"text-{number}" for number in range(len(found))]
    assert re.search(r"damaged: \d+ commits of .* are lost", caplog.text)
    assert list(copy.glob("*.damaged-*"))


@pytest.mark.parametrize("scheme", ["embedded", "opendata+slatedb"])
async def test_a_clock_that_stepped_back_neither_cuts_leases_nor_hands_out_early(
    scheme: str, tmp_path: Path
) -> None:
    uri = f"{scheme}://{tmp_path / 'data'}"
    now = time.time()
    async with stores(uri, Clock(wall=lambda: now)) as store:
        await post(store, "claimed")
        await claim(store)
        await store.post(
            QUEUE, [NewMessage(b'"delayed"', 7_200_000, 5_000)], client_id="c", version=None
        )
    clock = Clock(wall=lambda: now - 3_600)
    async with stores(uri, clock) as store:
        assert await claim(store) == []
        clock.advance(4_000)
        assert await claim(store) == []
        clock.advance(2_000)
        assert await claim(store) == ["delayed"]
        clock.advance(55_000)
        assert await claim(store) == ["claimed"]


async def claim(store: MessageStore) -> list[str]:
    claimed = await store.claim(
        QUEUE,
        Take(
            limit=10,
            ttl_ms=60_000,
            grace_ms=60_000,
            client_id="c",
            delay_mode=DelayMode.HONOUR,
            version=None,
        ),
    )
    return [json.loads(message.body) for message in claimed.messages]


@pytest.mark.parametrize("scheme", ["embedded", "opendata+slatedb"])
async def test_a_second_server_on_the_same_directory_refuses_in_one_line(
    scheme: str, tmp_path: Path
) -> None:
    uri = f"{scheme}://{tmp_path / 'data'}"
    async with stores(uri):
        with pytest.raises(ConfigurationError, match="Another server") as refused:
            await stores(uri).open()
        assert "\n" not in str(refused.value)
    async with stores(uri) as free_again:
        await free_again.ping()
