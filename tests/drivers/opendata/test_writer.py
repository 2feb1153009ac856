"""The process that writes the SQLite file: its death, its server's death, and what each leaves."""

import asyncio
import contextlib
import fcntl
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from zaqar_lite.storage.opendata.sqlite.writer import Database

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store, texts
from tests.server import ServerProcess
from tests.services.process import wait_until
from zaqar_lite.bench.machine import descendants
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.storage.opendata import database
from zaqar_lite.storage.opendata import sqlite as sqlite_engine
from zaqar_lite.storage.opendata.engine import Batch, Engine
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine
from zaqar_lite.storage.opendata.sqlite import FILE_NAME, SqliteEngine, WriterLink
from zaqar_lite.storage.opendata.sqlite import writer as sqlite_writer

pytestmark = pytest.mark.anyio
HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-Id": "writer"}


def writer_of(server_pid: int, directory: Path | None = None) -> int:
    """The process id of a server's writer; a test may have several, told by their directory."""
    place = b"sqlite/writer.py\0" + (b"" if directory is None else bytes(directory))
    for pid in descendants(server_pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if place in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError(f"process {server_pid} has no writer")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(f"embedded://{tmp_path / 'data'}") as running:
        yield running


def post(server: ServerProcess, text: str, timeout: float = 40) -> int:
    answer = httpx.post(
        f"{server.url}/v2/queues/queue/messages",
        headers=HEADERS,
        json={"messages": [{"body": text}]},
        timeout=timeout,
    )
    return answer.status_code


def listed(server: ServerProcess) -> list[str]:
    answer = httpx.get(
        f"{server.url}/v2/queues/queue/messages?echo=true&limit=20", headers=HEADERS, timeout=40
    )
    answer.raise_for_status()
    return [message["body"] for message in answer.json()["messages"]]


def test_a_writer_outlives_signals_and_is_replaced_when_it_is_killed(
    server: ServerProcess,
) -> None:
    """One server, through all of it: nothing that was acknowledged is lost."""
    assert post(server, "before") == 201
    first = writer_of(server.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(first, number)  # only its server ends it, which may still answer requests
    assert post(server, "signalled") == 201
    assert writer_of(server.pid) == first
    os.kill(first, signal.SIGKILL)
    while not is_gone(first):
        time.sleep(0.01)
    time.sleep(0.2)  # until the server has noticed: while idle it costs nobody an answer
    assert post(server, "idle") == 201
    second = writer_of(server.pid)
    os.kill(second, signal.SIGKILL)
    statuses: list[int] = []
    deadline = time.monotonic() + 30
    while not statuses or statuses[-1] != 201:
        assert time.monotonic() < deadline
        statuses.append(post(server, f"after {len(statuses)}"))
    assert set(statuses) <= {201, 503}
    third = writer_of(server.pid)
    assert len({first, second, third}) == 3
    found = listed(server)
    assert found[:3] == ["before", "signalled", "idle"]
    assert found[-1] == f"after {len(statuses) - 1}"
    os.killpg(server.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    assert server.terminate() == 0
    assert is_gone(third)
    assert "Traceback" not in server.log()
    server.start()
    assert listed(server) == found


def test_a_ping_says_how_long_the_disk_has_not_answered(server: ServerProcess) -> None:
    assert post(server, "before") == 201
    writer = writer_of(server.pid)
    os.kill(writer, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert post(server, "written later") == 503
        assert time.monotonic() - began > Engine.patience - 1
        answer = httpx.get(f"{server.url}/v2/ping", headers=HEADERS, timeout=40)
        assert answer.status_code == 503
        assert re.search(r"has not answered for [1-9]\d+ s", answer.json()["description"])
        assert httpx.head(f"{server.url}/v2/ping", headers=HEADERS).status_code == 204
    finally:
        os.kill(writer, signal.SIGCONT)
    wait_until(lambda: server.ping() == 204, [])
    assert post(server, "after") == 201
    assert listed(server) == ["before", "written later", "after"]


async def test_a_batch_of_a_killed_writer_is_stored_or_not_and_memory_says_which(
    tmp_path: Path,
) -> None:
    """The writer is stopped with the batch on the wire, then killed: nobody answered for it."""
    store = Store(f"embedded://{tmp_path / 'data'}")
    await store.messages.open()
    await store.post("before")
    pid = writer_of(os.getpid(), tmp_path)
    os.kill(pid, signal.SIGSTOP)
    posting = asyncio.create_task(store.post("in doubt"))
    await asyncio.sleep(0.1)
    gathered = asyncio.create_task(store.post("gathered meanwhile"))
    await asyncio.sleep(0.1)
    assert not posting.done()
    assert not gathered.done()
    os.kill(pid, signal.SIGKILL)
    for refused in (posting, gathered):  # the second was decided by what the first changed
        with pytest.raises(Unavailable, match="try again"):
            await refused
    await asyncio.sleep(1.1)  # for so long writes are refused
    await store.post("after")
    await check_database(store.db)
    await store.messages.close()


def test_the_next_server_waits_for_the_last_batch_of_a_killed_one(
    server: ServerProcess, tmp_path: Path
) -> None:
    """It would hand out what it read before that batch, and write over it."""
    assert post(server, "first") == 201
    pid = writer_of(server.pid)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(httpx.ReadTimeout):
        post(server, "second", timeout=0.5)
    os.kill(server.pid, signal.SIGKILL)
    while server.alive():
        time.sleep(0.01)
    following = subprocess.Popen(
        [sys.executable, "-c", _OPEN, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            following.wait(1.5)
        os.kill(pid, signal.SIGCONT)
        output, _ = following.communicate(timeout=30)
    finally:
        following.kill()
        following.wait()
    assert output.split() == ["2"]
    assert is_gone(pid)


_OPEN = """
import asyncio, sys
from zaqar_lite.domain.models import QueueRef
from tests.drivers.opendata.store import Store

async def main():
    store = Store("embedded://" + sys.argv[1])
    await store.messages.open()
    print((await store.messages.stats(QueueRef("writer", "queue"))).total)
    await store.messages.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("missing", [0, 1, 20_000])
def test_a_writer_ends_in_order_when_its_server_dies(
    missing: int, tmp_path: Path, *, reads: bool
) -> None:
    """With or without an answer that nobody read, a whole batch on the wire or a part of one."""
    file = tmp_path / FILE_NAME
    writer, wire = sqlite_engine._spawn(file)
    wire.recv(1_000)  # the file is open
    wire.sendall(sqlite_writer.encode_batch({b"first": b"value"}, ()))
    while count_rows(file) < 1:
        time.sleep(0.01)
    if reads:
        wire.recv(1_000)
    second = sqlite_writer.encode_batch({b"second": bytes(30_000)}, [b"first"])
    wire.sendall(second[: len(second) - missing])
    wire.close()
    assert writer.wait(30) == 0
    with sqlite3.connect(file) as database:
        found = [key for (key,) in database.execute("SELECT k FROM kv WHERE k > x'01'")]
    database.close()
    if missing:
        assert found == [b"first"]
    elif reads:
        assert found == [b"second"]


def count_rows(file: Path) -> int:
    database = sqlite3.connect(file)
    count: int = database.execute("SELECT count(*) FROM kv WHERE k > x'01'").fetchone()[0]
    database.close()
    return count


async def test_a_writer_that_does_not_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_engine, "_PATIENCE", 0.5)
    held = os.open(tmp_path / "writer.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)  # as an earlier writer does
    engine = SqliteEngine(tmp_path)
    with pytest.raises(ConfigurationError, match="earlier server still works"):
        await engine.open()
    os.close(held)
    monkeypatch.setattr(sqlite_engine, "_PATIENCE", 30.0)
    await engine.open()
    await engine.close()


async def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    """Also in a directory that others may enter, as systemd and administrators make them."""
    before = os.umask(0o022)
    try:
        await write_and_close(tmp_path)
        os.chmod(tmp_path / FILE_NAME, 0o644)  # noqa: PTH101 - as a restored backup may be
        await write_and_close(tmp_path)
    finally:
        os.umask(before)


async def write_and_close(directory: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = SqliteEngine(directory)
        await engine.open()
        stack.push_async_callback(engine.close)
        await engine.commit(Batch({b"key": b"body"}, ()))
        modes = modes_in(directory)
        assert {*modes} >= {FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"}
        assert {*modes.values()} == {0o600}


def modes_in(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


async def test_the_answer_to_a_cancelled_batch_is_not_taken_for_the_next_one(
    tmp_path: Path,
) -> None:
    """As a second Ctrl-C does, which cancels the commit and closes the store at once."""
    engine = SqliteEngine(tmp_path)
    await engine.open()
    pid = writer_of(os.getpid(), tmp_path)
    os.kill(pid, signal.SIGSTOP)
    cancelled = asyncio.create_task(engine.commit(Batch({b"cancelled": b"value"}, ())))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    keys = [b"%d" % number for number in range(20_000)]
    following = asyncio.create_task(engine.commit(Batch(dict.fromkeys(keys, b"value"), ())))
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(Unavailable):  # what became of the one before is to be read again first
        await following
    assert len(await engine.get([*keys, b"cancelled"])) in {0, 1}
    await engine.commit(Batch(dict.fromkeys(keys, b"value"), ()))
    assert len(await engine.get(keys)) == len(keys)
    await engine.close()


async def test_a_store_closes_although_its_writer_does_not_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LAST_BATCH", 0.3)
    monkeypatch.setattr(sqlite_engine, "_LAST_CHECKPOINT", 0.3)
    store = Store(f"embedded://{tmp_path / 'data'}")
    await store.messages.open()
    await store.post("before")
    pid = writer_of(os.getpid(), tmp_path)
    os.kill(pid, signal.SIGSTOP)
    posting = asyncio.create_task(store.post("in doubt"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):
        await store.messages.close()
        with pytest.raises(Unavailable):
            await posting
    assert is_gone(pid)
    await store.restart()
    assert texts(await store.claim()) in (["before"], ["before", "in doubt"])
    await store.messages.close()


def test_a_stop_that_can_not_wait_any_longer_says_so(tmp_path: Path) -> None:
    """The disk hangs; the client must learn that nobody knows, and not of a bug."""
    patience = {"ZAQAR_LITE_SHUTDOWN_TIMEOUT": "1"}
    with ServerProcess(f"embedded://{tmp_path / 'data'}", env=patience) as server:
        assert post(server, "before") == 201
        os.kill(writer_of(server.pid), signal.SIGSTOP)
        with ThreadPoolExecutor() as threads:
            posting = threads.submit(post, server, "in doubt")
            time.sleep(0.5)
            os.kill(server.pid, signal.SIGTERM)
            assert posting.result(20) == 503
        server.kill()
        assert "traceback" not in server.log().lower()


def test_a_second_interrupt_ends_the_server_in_order(server: ServerProcess) -> None:
    assert post(server, "before") == 201
    writer = writer_of(server.pid)
    os.kill(writer, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        posting = threads.submit(post, server, "in doubt")
        for _ in range(2):
            time.sleep(0.5)
            os.kill(server.pid, signal.SIGINT)
        with contextlib.suppress(httpx.TransportError):  # the server need not wait for its answer
            assert posting.result(20) == 503
        os.kill(writer, signal.SIGCONT)
    deadline = time.monotonic() + 20
    while server.alive():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "traceback" not in server.log().lower()
    server.start()
    assert listed(server) in (["before"], ["before", "in doubt"])


async def test_too_few_file_descriptors_are_one_line_and_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    engine = SqliteEngine(tmp_path)
    await engine.open()  # what opening imports, it imports now
    await engine.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest_descriptor() + 32, limits[1]))
    held = hold_every_descriptor()
    refused: list[str] = []
    try:
        while True:
            try:
                await engine.open()
                break
            except ConfigurationError as exc:
                refused.append(str(exc))
            again = hold_every_descriptor()
            for file in again:
                os.close(file)
            assert len(again) == len(refused) - 1
            os.close(held.pop())
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(refused) > 4
    assert "Restore" not in "".join(refused)  # nothing is wrong with the file
    await engine.close()
    with pytest.raises(AssertionError, match="no writer"):
        writer_of(os.getpid(), tmp_path)


async def test_no_thread_to_spare_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = SqliteEngine(tmp_path)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ConfigurationError, match="can't start new thread"):
            await engine.open()
    await engine.open()
    await engine.close()


def highest_descriptor() -> int:
    """The highest one that is open: a test process may hold many by now."""
    return max(int(file.name) for file in Path("/proc/self/fd").iterdir())


def hold_every_descriptor() -> list[int]:
    held: list[int] = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return held


@pytest.mark.parametrize("make", [SqliteEngine, SlateDbEngine.in_directory])
async def test_a_key_that_a_batch_both_puts_and_deletes_is_gone(
    make: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """So is the metadata of a message that was posted and deleted before its batch was taken."""
    engine = make(tmp_path)
    await engine.open()
    await engine.commit(Batch({b"both": b"value", b"kept": b"value"}, [b"both"]))
    assert await engine.get([b"both", b"kept"]) == {b"kept": b"value"}
    await engine.close()


def test_a_batch_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    database = Database(tmp_path / FILE_NAME)
    wrong = b"\x01\x01short"  # begins as the key of a payload does, and is none
    with pytest.raises(sqlite3.Error, match="no key of the table payload"):
        database.write({b"first": b"value", wrong: b"value"}, ())
    database.write({b"third": b"value"}, ())
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT k FROM kv WHERE k > x'01'").fetchall() == [(b"third",)]
    connection.close()
    database.close()


async def test_an_answer_may_come_in_parts() -> None:
    ours, theirs = socket.socketpair()
    link = WriterLink(subprocess.Popen(["true"]))  # noqa: ASYNC220 - ends at once
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    writing = asyncio.create_task(link.write(Batch({b"key": b"value"}, ())))
    answer = sqlite_writer.ANSWER.pack(13, 4) + b"full"
    for part in (answer[:5], answer[5:10], answer[10:]):
        await asyncio.sleep(0.02)
        theirs.sendall(part)
    with pytest.raises(sqlite3.OperationalError, match=r"^full$"):
        await writing
    await link.stop()
    theirs.close()
