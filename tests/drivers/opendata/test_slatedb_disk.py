"""SlateDB on full and failing disks, met by the real server and by the store itself."""

import asyncio
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store, engine_in
from tests.drivers.small_disk import fill_up, mounted
from tests.server import ServerProcess
from tests.services.process import missing
from tests.waiting import until, until_available
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata.engine import Batch
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine

pytestmark = pytest.mark.anyio
HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-Id": "disk"}


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


@pytest.fixture
def faulty(shim: Path, tmp_path: Path) -> Iterator[Faulty]:
    server = Faulty(shim, f"opendata+slatedb://{tmp_path / 'data'}", "/slatedb", tmp_path)
    try:
        server.server.start()
        yield server
    finally:
        server.server.kill()
        server.server.close()


def test_an_io_error_refuses_everything_until_the_disk_takes_writes_again(faulty: Faulty) -> None:
    for _ in range(3):
        assert faulty.post().status_code == 201
    faulty.trigger.write_text("EIO")
    refused = faulty.post()
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    faulty.trigger.unlink()
    until = time.monotonic() + 30
    while faulty.post().status_code != 201:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert set(faulty.posted) <= set(faulty.listed())  # the refused one may be there


def test_every_post_waits_for_a_sync(faulty: Faulty) -> None:
    """A kill does not show this, only a loss of power: the system keeps what was written."""
    assert faulty.post().status_code == 201
    faulty.trigger.write_text("SYNC")
    assert faulty.post().status_code == 503


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of two megabytes."""
    with mounted(2 << 20) as place:
        yield place


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a hanging disk as long as a server does."""
    monkeypatch.setattr(SlateDbEngine, "patience", 2.0)


async def test_a_disk_that_fills_up_loses_nothing(small_disk: Path, impatience: None) -> None:
    uri = f"opendata+slatedb://{small_disk / 'data'}"
    store = Store(uri)
    posted: list[str] = []
    async with store:
        with pytest.raises(Unavailable, match="full"):
            await fill(store, posted)
        assert posted
        with pytest.raises(Unavailable):
            await store.post("refused")
    give_room(small_disk)  # SlateDB cannot even be opened without
    async with Store(uri) as again:
        assert (await again.bodies())[: len(posted)] == posted
        await again.post("room")


@pytest.mark.parametrize("kept", [[], ["kept"]])
async def test_a_start_on_a_full_disk_says_so_and_loses_nothing(
    small_disk: Path, kept: list[str]
) -> None:
    """Also the first one."""
    store = Store(f"opendata+slatedb://{small_disk / 'data'}")
    if kept:
        async with store:
            await store.post(*kept)
    filler = fill_up(small_disk)
    with pytest.raises(ConfigurationError, match="its disk is full: free some space"):
        await store.messages.open()
    filler.unlink()
    async with store:
        await store.post("room")
        assert await store.bodies() == [*kept, "room"]


async def test_what_waits_for_room_is_whole_once_it_is_stored(
    small_disk: Path, impatience: None
) -> None:
    posted: list[str] = []
    async with Store(f"opendata+slatedb://{small_disk / 'data'}") as store:
        with pytest.raises(Unavailable, match="full"):
            await fill(store, posted)
        for asked in (store.post("refused"), store.messages.ping(), store.bodies()):
            with pytest.raises(Unavailable, match="full"):
                await asked
        give_room(small_disk)
        await until_available(lambda: store.post("later"))
        found = await store.bodies()
        assert found[: len(posted)] == posted
        assert "refused" not in found
        assert found[-1] == "later"
        await check_database(store.db)


async def test_an_end_waits_for_no_write_that_waits_for_room(small_disk: Path) -> None:
    engine = await engine_in(small_disk)
    fill_up(small_disk)
    write = asyncio.create_task(engine.commit(Batch({b"key": bytes(100_000)}, ())))
    await until(lambda: engine.complaint)
    await engine.close()
    with pytest.raises(Unavailable, match="closed"):
        await write


def give_room(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)


async def fill(store: Store, posted: list[str]) -> None:
    for number in range(1_000):
        text = f"{number}-{'x' * 20_000}"
        await store.post(text)
        posted.append(text)


async def test_a_large_batch_is_handed_to_slatedb_in_parts(tmp_path: Path) -> None:
    engine = await engine_in(tmp_path / "data")
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
    for key in (b"key-0", b"key-19999"):
        assert await engine.get(key) == bytes(100)
    await engine.close()


async def test_a_second_server_on_the_same_directory_refuses_in_one_line(tmp_path: Path) -> None:
    uri = f"opendata+slatedb://{tmp_path / 'data'}"
    async with Store(uri):
        with pytest.raises(ConfigurationError, match="Another server") as refused:
            await Store(uri).messages.open()
        assert "\n" not in str(refused.value)
    async with Store(uri) as free_again:
        await free_again.messages.ping()


async def test_the_folders_are_for_the_owner_alone_and_are_let_go(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with Store(f"opendata+slatedb://{data}"):
        assert [one.stat().st_mode & 0o777 for one in (data, data / "slatedb")] == [0o700, 0o700]
    files = {one.resolve() for one in Path("/proc/self/fd").iterdir()}  # noqa: ASYNC240 - no disk
    assert not {data / "slatedb", data / "lock"} & files
