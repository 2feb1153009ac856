"""`zaqar-lite store` check, backup and compact, as a user runs them."""

import asyncio
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, QUEUE
from tests.server import PING_HEADERS, ServerProcess
from tests.store.running import on, run, store
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.sql.place import FILE_NAME
from zaqar_lite.store.checking import check
from zaqar_lite.store.commands import snapshot

Capture = pytest.CaptureFixture[str]


# -- check --


def test_a_good_store_has_no_problems(directory: Path, capsys: Capture) -> None:
    assert store("check", directory) == 0
    assert capsys.readouterr().out == "0 problems; 3 queues, 8 messages\n"


@pytest.mark.parametrize("name", ["embedded://{0}", "opendata+sqlite://{0}", "{0}", "{0}/{1}"])
def test_a_store_is_named_by_its_directory_its_uri_or_its_file(name: str, directory: Path) -> None:
    assert store("check", name.format(directory, FILE_NAME)) == 0


@pytest.mark.parametrize(
    ("breach", "problem"),
    [
        ("UPDATE queue SET ready = 9 WHERE name = 'queue'",
         "queue project/queue: 'ready' is 9, but there are 3."),
        ("UPDATE queue SET delayed = 0", "queue project/queue: 'delayed' is 0, but there are 1."),
        ("UPDATE queue SET leased = 0", "queue project/queue: 'leased' is 0, but there are 1."),
        ("UPDATE queue SET parked = 2 WHERE name = 'other'",
         "queue project/other: 'parked' is 2, but there are 0."),
        ("UPDATE queue SET bytes = 0 WHERE name = 'queue'",
         "queue project/queue: 'bytes' is 0, but there are"),
        ("UPDATE entry SET size = 0", "rows of 'entry' are of another size than their bodies"),
        ("UPDATE queue SET keys = 0", "queue project/queue: 'keys' is 0, but there are 1."),
        ("UPDATE queue SET ended = 0", "queue project/queue: 'ended' is 0, but there are 1."),
        ("UPDATE claim SET held = 2", "'held' is 2, but there are 1."),
        ("UPDATE body SET holders = 3 WHERE holders = 2", "'holders' is 3, but there are 2."),
        ("UPDATE project SET queues = 7", "project project: 'queues' is 7, but there are 2."),
        ("DELETE FROM project", "2 rows of 'queue' are of a project without a count"),
        ("DELETE FROM body WHERE holders = 2", "2 rows of 'entry' have no body"),
        ("DELETE FROM attempts", "2 rows of 'entry' miss their attempts"),
        ("UPDATE entry SET has_attempts = 0", "2 rows of 'attempts' are of no message"),
        ("DELETE FROM claim", "1 rows of 'entry' are held by a claim that is not there"),
        ("DELETE FROM queue WHERE name = 'queue'", "6 rows of 'entry' are in no queue"),
        ("DELETE FROM queue WHERE name = 'queue'", "1 rows of 'claim' are of no queue"),
        ("DELETE FROM queue WHERE name = 'queue'", "1 rows of 'idempotency' are of no queue"),
        ("DELETE FROM queue WHERE name = 'queue'", "1 rows of 'history' are of no queue"),
        ("UPDATE counter SET position = 1", "would give again what was given already"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_named(
    breach: str, problem: str, directory: Path, capsys: Capture
) -> None:
    with closing(sqlite3.connect(directory / FILE_NAME)) as database, database:
        database.execute(breach.replace("SET delayed = 0", "SET delayed = 0 WHERE delayed = 1"))
    assert store("check", directory) == 1
    out = capsys.readouterr().out
    assert problem in out
    assert f"{out.count(chr(10)) - 1} problems; " in out.splitlines()[-1]


@pytest.mark.anyio
async def test_a_purge_that_is_not_swept_yet_is_no_problem(directory: Path) -> None:
    async with Store(directory) as opened:
        await opened.messages.purge(QUEUE)
        with snapshot(opened.place.file) as connection:
            assert not list(check(connection))


def test_a_damaged_page_is_found(directory: Path, capsys: Capture) -> None:
    break_page(directory / FILE_NAME, "entry")
    assert store("check", directory) == 1
    out = capsys.readouterr().out
    assert "SQLite: " in out
    assert "The file is damaged: restore a backup, or run zaqar-lite store salvage." in out


@pytest.mark.parametrize("damage", [b'need"e', b"need\xffe"])
def test_a_body_that_is_damaged_is_told_and_does_not_come_along(
    damage: bytes, directory: Path, tmp_path: Path, capsys: Capture
) -> None:
    async def post(store: Store) -> None:
        await store.post("a needle")

    on(directory, post)
    file = directory / FILE_NAME
    file.write_bytes(file.read_bytes().replace(b"needle", damage))
    assert store("check", directory) == 1
    assert "1 rows of 'entry' have a body that is no JSON." in capsys.readouterr().out
    assert store("export", directory, tmp_path / "out") == 2
    assert f"store salvage {directory} NEW_DIRECTORY" in capsys.readouterr().err
    assert store("salvage", directory, tmp_path / "new") == 0
    assert store("check", tmp_path / "new") == 0
    assert store("export", tmp_path / "new", tmp_path / "out") == 0
    assert b"copied" in (tmp_path / "out").read_bytes()


def test_what_is_no_store_at_all_is_refused(directory: Path, capsys: Capture) -> None:
    file = directory / FILE_NAME
    file.write_bytes(b"x" * 100_000)
    for command in ("check", "export"):
        assert store(command, directory) == 2
        assert f"store salvage {directory} NEW_DIRECTORY" in capsys.readouterr().err
    assert file.read_bytes() == b"x" * 100_000


@pytest.mark.parametrize("command", ["check", "export"])
def test_a_store_of_another_version_is_not_read(
    command: str, directory: Path, capsys: Capture
) -> None:
    """What its tables mean, and which rules hold between them, this version can't know."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as database:
        database.execute("PRAGMA user_version = 99")
    assert store(command, directory) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert "user_version 99" in printed.err
    assert "use the version that made it" in printed.err


def break_page(file: Path, table: str) -> None:
    """Zero a page of a table: a leaf, or the only one."""
    with closing(sqlite3.connect(file)) as database:
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (root,) = database.execute(sql, (table,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(file.read_bytes())
    at = (root - 1) * size
    if data[at] in {2, 5}:  # an inner page: a leaf in the middle of those that it leads to
        cell = at + 12 + int.from_bytes(data[at + 3 : at + 5], "big") // 2 * 2
        at += int.from_bytes(data[cell : cell + 2], "big")
        at = (int.from_bytes(data[at : at + 4], "big") - 1) * size
    data[at : at + size] = bytes(size)
    file.write_bytes(data)


def test_a_check_changes_nothing(directory: Path, tmp_path: Path) -> None:
    """Not even what a killed server left in the log."""
    killed = tmp_path / "killed"

    async def copy(opened: Store) -> None:
        await opened.post("new")
        shutil.copytree(directory, killed, ignore=shutil.ignore_patterns("*-shm"))

    on(directory, copy)
    before = {file.name: file.read_bytes() for file in killed.iterdir()}
    assert before[f"{FILE_NAME}-wal"]
    assert store("check", killed) == 0
    after = {file.name: file.read_bytes() for file in killed.iterdir() if "-shm" not in file.name}
    assert after == before
    assert "new" in on(killed, Store.bodies)


@pytest.mark.parametrize("command", ["check", "export", "compact"])
def test_there_must_be_a_store(command: str, tmp_path: Path, capsys: Capture) -> None:
    missing = tmp_path / "nothing"
    assert store(command, missing) == 2
    assert f"There is no store in {missing}." in capsys.readouterr().err
    assert not missing.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["check", "redis://:pass@host"], ["check", "memory://"],
        ["backup", "opendata+slatedb:///x", "target"], ["compact", "opendata+slatedb:///x"],
    ],
)  # fmt: skip
def test_other_stores_are_refused_in_one_line(words: list[str], capsys: Capture) -> None:
    assert store(*words) == 2
    error = capsys.readouterr().err
    assert "works on embedded:// stores" in error
    assert "moves queues" in error
    assert error.count("\n") == 1
    assert "pass" not in error


# -- backup --


def post(server: ServerProcess, *bodies: str) -> None:
    answer = httpx.post(
        f"{server.url}/v2/queues/queue/messages",
        headers=PING_HEADERS,
        json={"messages": [{"body": body, "ttl": 3600} for body in bodies]},
        timeout=40,
    )
    assert answer.status_code == 201


def test_a_backup_of_a_running_store_is_a_store(tmp_path: Path) -> None:
    """While the server writes; by our command, and by what Python brings."""
    directory = tmp_path / "data"
    with ServerProcess(f"embedded://{directory}") as server:
        post(server, *(f"before-{number}" for number in range(10)))
        is_over = threading.Event()
        writing = threading.Thread(target=write_on, args=(server, is_over))
        writing.start()
        try:
            files = [tmp_path / f"{number}.sqlite3" for number in range(3)]
            for file in files:
                done = run("backup", directory, file)
                assert done.returncode == 0, done.stderr
            plain = tmp_path / "plain.sqlite3"
            with closing(sqlite3.connect(directory / FILE_NAME)) as source:
                with closing(sqlite3.connect(plain)) as target:
                    source.backup(target)
            done = run("check", directory)
            assert done.returncode == 0, done.stdout
        finally:
            is_over.set()
            writing.join()
        post(server, "after")
    counts = []
    for file in (*files, plain):
        assert store("check", file) == 0
        place = tmp_path / f"restored-{file.name}"
        place.mkdir()
        shutil.copy(file, place / FILE_NAME)
        with ServerProcess(f"embedded://{place}") as restored:
            page = httpx.get(
                f"{restored.url}/v2/queues/queue/messages?echo=true&limit=20", headers=PING_HEADERS
            ).json()
            texts = [message["body"] for message in page["messages"]]
            assert texts[:10] == [f"before-{number}" for number in range(10)]
            assert "after" not in texts
        with snapshot(place / FILE_NAME) as connection:
            counts.append(connection.execute("SELECT count(*) FROM entry").get)
    assert counts == sorted(counts)


def write_on(server: ServerProcess, is_over: threading.Event) -> None:
    while not is_over.is_set():
        post(server, "meanwhile")


def test_a_backup_goes_into_a_directory_and_takes_no_place(
    directory: Path, tmp_path: Path, capsys: Capture
) -> None:
    place = tmp_path / "backup"
    place.mkdir()
    assert store("backup", directory, place) == 0
    assert (place / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in place.iterdir()] == [FILE_NAME]
    assert store("backup", directory, place) == 2
    assert "is there already" in capsys.readouterr().err
    assert store("backup", directory, directory) == 2
    for command in ("backup", "export"):
        assert store(command, directory, tmp_path / "none" / "file") == 2
        assert f"There is no directory {tmp_path / 'none'}: make it" in capsys.readouterr().err
    assert store("check", place) == 0
    assert on(place, Store.bodies) == on(directory, Store.bodies)


def test_a_backup_that_fails_leaves_nothing(directory: Path, tmp_path: Path) -> None:
    break_page(directory / FILE_NAME, "queue")
    assert store("backup", directory, tmp_path / "missing" / "backup.sqlite3") == 2
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


# -- compact --


def test_compact_makes_a_file_as_small_as_it_gets(directory: Path, capsys: Capture) -> None:
    async def purge(opened: Store) -> None:
        ids = await opened.post(*[NewMessage(b'"%s"' % (b"x" * 1_100), HOUR)] * 1_000)
        await opened.messages.delete(QUEUE, ids, claim_ids=None)

    before = on(directory, Store.bodies)
    on(directory, purge)
    assert store("compact", directory) == 0
    out = capsys.readouterr().out.split()
    assert int(out[0]) > 3 * int(out[3])
    assert int(out[3]) == (directory / FILE_NAME).stat().st_size
    assert sorted(file.name for file in directory.iterdir()) == ["lock", FILE_NAME]
    assert store("check", directory) == 0
    assert on(directory, Store.bodies) == before


def test_compact_needs_the_server_to_stop(directory: Path) -> None:
    async def beside(_: Store) -> bytes:
        return (await asyncio.to_thread(run, "compact", directory)).stderr

    assert b"Another server" in on(directory, beside)
