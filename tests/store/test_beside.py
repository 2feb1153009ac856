"""Who else is on the machine: other users, and programs that read the file."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR
from tests.store.running import on
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.storage.sql.place import FILE_NAME
from zaqar_lite.store.checking import check
from zaqar_lite.store.commands import snapshot

_READ = """
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
store.execute("BEGIN")
print(store.execute("SELECT count(*) FROM entry").fetchone()[0], flush=True)
sys.stdin.read()
"""


@contextmanager
def reader(file: Path) -> Iterator[None]:
    """A process that keeps a read transaction open, by the SQLite that Python has."""
    command = [sys.executable, "-c", _READ, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield


def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    """Also in a directory that others may enter, as systemd and administrators make them."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o755)

    async def modes(store: Store) -> dict[str, int]:
        await store.post("text")
        return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}

    before = os.umask(0o022)
    try:
        found = on(directory, modes)
    finally:
        os.umask(before)
    assert {*found} == {"lock", FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"}
    assert {*found.values()} == {0o600}


def test_a_start_after_a_kill_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    """As a backup is, or Litestream, which reads all the time."""
    directory, killed = tmp_path / "data", tmp_path / "killed"

    async def copy(store: Store) -> None:
        await store.post("before")
        shutil.copytree(directory, killed, ignore=shutil.ignore_patterns("*-shm"))

    on(directory, copy)

    async def go_on(store: Store) -> list[str]:
        await store.post("after")
        return await store.bodies()

    with reader(killed / FILE_NAME):
        assert on(killed, go_on) == ["before", "after"]


def test_a_check_beside_a_large_post_finds_nothing_wrong(tmp_path: Path) -> None:
    copies = tuple(Copy(QueueRef("project", str(number)), HOUR, 0, 100) for number in range(60))

    async def work(store: Store) -> list[str]:
        posting = asyncio.create_task(store.post(*[NewMessage(b"1", HOUR, copies=copies)] * 10))
        problems: list[str] = []
        while not posting.done():
            with snapshot(store.place.file) as connection:
                problems += check(connection)
            await asyncio.sleep(0)
        await posting
        return problems

    assert on(tmp_path / "data", work) == []
