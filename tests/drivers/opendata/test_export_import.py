"""Export and import of queues: the file, its lines, and what a store takes from them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.opendata.store import HOUR, QUEUE, Store
from zaqar_lite.cli import main
from zaqar_lite.domain.models import QueueRef, Selection
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.opendata.format import after_prefix, keys
from zaqar_lite.storage.opendata.format.keys import RecordType

HEAD = '{"format":"zaqar-lite","version":1}\n'
LINE_ENDS = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"embedded://{tmp_path / 'data'}")


def fill(store: Store, *texts: str, metadata: Mapping[str, Any] | None = None) -> None:
    """Make a queue with these messages, whose headers are their texts, and close the store."""

    async def work() -> None:
        await store.messages.open()
        await store.management.create_queue(QUEUE, metadata or {}, max_queues=9)
        for text in texts:
            body = json.dumps(text, ensure_ascii=False).encode()
            await store.post(NewMessage(body, HOUR, headers={"h": text[:99]}))
        await store.messages.close()

    asyncio.run(work())


def queues_of(uri: str, project: str = "p") -> list[str]:
    async def work() -> list[str]:
        store = Store(uri)
        await store.messages.open()
        names = list(store.db.queues.records.names(project))
        await store.messages.close()
        return names

    return asyncio.run(work())


def run(
    *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "zaqar_lite.cli", "store", *words]
    return subprocess.run(
        command, check=False, capture_output=True, timeout=60, env=os.environ | (environment or {})
    )


def queue(name: str, metadata: object = None, project: str = "p") -> str:
    described = {"project": project, "name": name, "metadata": metadata or {}}
    return json.dumps({"queue": described}) + "\n"


def queue_with(value: str) -> str:
    return f'{{"queue":{{"project":"p","name":"n","metadata":{{"a":{value}}}}}}}\n'


def message_with(**fields: object) -> str:
    required = {"project": "p", "queue": "good", "body": "1"}
    times = {"created_at": 0, "expires_at": 1, "ttl_ms": 1}
    return json.dumps({"message": required | times | fields}) + "\n"


LONG = "\u00e9" * 40_000
"""More bytes than a record's text has, though not so many characters."""


# -- the file --


def test_an_export_that_fails_leaves_the_file_of_an_earlier_one(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "kept")
    file = tmp_path / "export.jsonl"
    assert main(["store", "export", "--store", store.uri, str(file)]) == 0
    before = file.read_bytes()
    assert b"kept" in before
    assert main(["store", "export", "--store", f"embedded://{tmp_path}/typo", str(file)]) == 2

    async def beside_a_server() -> bytes:
        server = Store(store.uri)
        await server.messages.open()
        done = await asyncio.to_thread(run, "export", "--store", store.uri, str(file))
        await server.messages.close()
        assert done.returncode == 2
        return done.stderr

    assert b"Another server" in asyncio.run(beside_a_server())
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "export.jsonl"]


def test_an_export_that_is_interrupted_leaves_nothing_beside_its_file(
    store: Store, tmp_path: Path
) -> None:
    fill(store, "x" * 1_000_000)
    file = tmp_path / "export.jsonl"
    command = f"ulimit -f 100; exec {sys.executable} -m zaqar_lite.cli store export"
    done = subprocess.run(
        ["sh", "-c", f"{command} --store {store.uri} {file}"],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_export_takes_the_place_of_an_earlier_one_as_it_was(
    store: Store, tmp_path: Path
) -> None:
    fill(store, "new")
    real, link = tmp_path / "real.jsonl", tmp_path / "export.jsonl"
    real.write_text("earlier", encoding="utf-8")
    real.chmod(0o644)
    link.symlink_to(real.name)
    assert main(["store", "export", "--store", store.uri, str(link)]) == 0
    assert link.is_symlink()
    assert b"new" in real.read_bytes()
    assert real.stat().st_mode & 0o777 == 0o600


def test_nobody_else_may_read_an_export(store: Store, tmp_path: Path) -> None:
    fill(store, "text")
    file, before = tmp_path / "export.jsonl", os.umask(0)
    try:
        assert main(["store", "export", "--store", store.uri, str(file)]) == 0
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_export_goes_into_what_is_no_file(store: Store, tmp_path: Path) -> None:
    fill(store, "text")
    done = run("export", "--store", store.uri, "/dev/stdout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(HEAD.encode())
    assert main(["store", "export", "--store", store.uri, "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    assert main(["store", "export", "--store", store.uri, str(tmp_path)]) == 2


@pytest.mark.parametrize("text", ["", "\n", " \r\n"])
def test_an_empty_file_is_no_export(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, uri = tmp_path / "export.jsonl", f"embedded://{tmp_path / 'data'}"
    file.write_text(text, encoding="utf-8")
    assert main(["store", "import", "--store", uri, str(file)]) == 2
    error = capsys.readouterr().err
    assert "the file is empty" in error
    assert error.count("\n") == 1


# -- its lines --


def test_what_looks_like_the_end_of_a_line_moves_to_another_store(
    store: Store, tmp_path: Path
) -> None:
    fill(store, LINE_ENDS, "é", metadata={"note": LINE_ENDS})
    file, other = tmp_path / "export.jsonl", Store(f"embedded://{tmp_path / 'other'}")
    assert main(["store", "export", "--store", store.uri, str(file)]) == 0
    assert main(["store", "import", "--store", other.uri, str(file)]) == 0

    async def contents() -> list[object]:
        await other.messages.open()
        page = await other.messages.list_messages(QUEUE, Selection(limit=9))
        record = await other.management.get_queue(QUEUE)
        await other.messages.close()
        return [record and record.metadata, *[(m.body, m.headers) for m in page.messages]]

    bodies = [json.dumps(text, ensure_ascii=False).encode() for text in (LINE_ENDS, "é")]
    assert asyncio.run(contents()) == [
        {"note": LINE_ENDS}, (bodies[0], {"h": LINE_ENDS}), (bodies[1], {"h": "é"})
    ]  # fmt: skip


def test_the_locale_changes_nothing(store: Store, tmp_path: Path) -> None:
    fill(store, "é\u2028")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run("export", "--store", store.uri, environment=ascii_only)
    assert done.returncode == 0, done.stderr
    assert "é\u2028".encode() in done.stdout
    file = tmp_path / "export.jsonl"
    file.write_bytes(done.stdout)
    other = f"embedded://{tmp_path / 'other'}"
    imported = run("import", "--store", other, str(file), environment=ascii_only)
    assert imported.returncode == 0, imported.stderr
    assert not run("check", "--store", other, environment=ascii_only).returncode


def test_an_import_reads_standard_input(tmp_path: Path) -> None:
    uri = f"embedded://{tmp_path / 'data'}"
    command = [sys.executable, "-m", "zaqar_lite.cli", "store", "import", "--store", uri]
    text = (HEAD + queue("a")).encode()
    subprocess.run(command, check=True, capture_output=True, input=text, timeout=60)
    assert queues_of(uri) == ["a"]


# -- what is missing --


async def damage(uri: str, prefix: bytes, count: int) -> None:
    """Flip a bit in the first records whose keys begin like this."""
    store = Store(uri)
    await store.messages.open()
    found = [
        key async for rows in store.db.engine.scan(prefix, after_prefix(prefix)) for key, _ in rows
    ]
    await store.restart_damaged(*found[:count])
    await store.messages.close()


def test_an_export_without_damaged_messages_says_how_many_are_missing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "one", "two", "three")

    asyncio.run(damage(store.uri, keys.PAYLOAD_PREFIX, 2))
    file = tmp_path / "export.jsonl"
    assert main(["store", "export", "--store", store.uri, str(file)]) == 1
    assert "2 messages can't be read and are not in the export" in capsys.readouterr().err
    assert [line["message"]["body"] for line in messages_in(file)] == ['"three"']


def test_an_export_without_a_damaged_queue_record_says_so(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "one")

    asyncio.run(damage(store.uri, keys.prefix(RecordType.CONFIG), 1))
    file = tmp_path / "export.jsonl"
    assert main(["store", "export", "--store", store.uri, str(file)]) == 1
    assert "records of the store can't be read: 1" in capsys.readouterr().err
    assert len(messages_in(file)) == 1


def messages_in(file: Path) -> list[Any]:
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    return [line for line in lines if "message" in line]


# -- what a queue may be --

WRONG_METADATA: dict[str, tuple[object, str]] = {
    "filter": ({"_filter": "bad ("}, "position"),
    "priority": ({"_priority": "RULES("}, "position"),
    "ttl": ({"_default_message_ttl": "x"}, "_default_message_ttl must be an integer"),
    "post size": ({"_max_messages_post_size": "z"}, "_max_messages_post_size"),
    "claim count": ({"_max_claim_count": -1}, "_max_claim_count must be between"),
    "claim count too high": ({"_max_claim_count": 1 << 40}, "_max_claim_count must be between"),
    "own letters": ({"_dead_letter_queue": "bad"}, "another queue"),
    "chain": ({"_dead_letter_queue": "source"}, "do not chain"),
    "encryption": ({"_enable_encrypt_messages": True}, "does not encrypt"),
    "too large": ({"note": "x" * 70_000}, "65536 are allowed"),
    "wide number": ({"note": 1 << 70}, "64 bits"),
    "NaN": ({"note": float("nan")}, "malformed"),
    "infinite": ({"note": float("inf")}, "malformed"),
}


@pytest.mark.parametrize(("metadata", "why"), WRONG_METADATA.values(), ids=WRONG_METADATA)
def test_an_import_checks_metadata_as_the_server_does(
    metadata: object, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = queue("source", {"_dead_letter_queue": "letters", "_max_claim_count": 1})
    error = refused(HEAD + source + queue("bad", metadata), tmp_path, capsys)
    assert error.startswith("zaqar-lite: Line 3 can't be imported: ")
    assert why in error


@pytest.mark.parametrize(
    "line",
    [
        queue("a b\u00e9"), queue(""), queue("x" * 65), queue("a", project="x" * 257),
        queue_with("[" * 99_999 + "]" * 99_999), queue_with("[" * 600 + "]" * 600),
        queue_with("1e999"), queue_with("9" * 5_000),
        '{"queue":{"project":"p","name":"n","metadata":[]}}\n',
        message_with(headers={LONG: ""}),
        message_with(attempts=[
            {"number": 1, "claimed_at": 0, "ended_at": 0, "outcome": "failed", "detail": LONG}
        ]),
        json.dumps({"record": {"kind": LONG, "project": "p", "name": "n", "value": "1"}}) + "\n",
        '{"queue":"text"}\n', '{"other":1}\n', "[1]\n", '"queue"\n', "\xff\n", "null\n",
    ],
    ids=lambda line: line[:60],
)  # fmt: skip
def test_an_import_refuses_a_wrong_line(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(HEAD + queue("good") + line, tmp_path, capsys, encoding="latin-1")
    assert error.startswith("zaqar-lite: Line 3 can't be imported: ")
    assert error.endswith("Nothing was stored.\n")


def refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: str = "utf-8"
) -> str:
    file, uri = tmp_path / "export.jsonl", f"embedded://{tmp_path / 'data'}"
    file.write_bytes(text.encode(encoding))
    assert main(["store", "import", "--store", uri, str(file)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert queues_of(uri) == []
    return error


def filtered(count: int) -> str:
    return HEAD + "".join(queue(f"q{number}", {"_filter": "TRUE"}) for number in range(count))


def test_an_import_counts_filters_with_those_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Line 102" in refused(filtered(101), tmp_path, capsys)
    file, uri = tmp_path / "export.jsonl", f"embedded://{tmp_path / 'data'}"
    file.write_text(filtered(100), encoding="utf-8")
    for _ in range(2):  # the second time they are there
        assert main(["store", "import", "--store", uri, str(file)]) == 0
    file.write_text(HEAD + queue("more", {"_filter": "TRUE"}), encoding="utf-8")
    assert main(["store", "import", "--store", uri, str(file)]) == 2
    file.write_text(HEAD + queue("more", {"_filter": "TRUE"}, project="q"), encoding="utf-8")
    assert main(["store", "import", "--store", uri, str(file)]) == 0


def test_an_import_takes_the_limits_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, uri = tmp_path / "export.jsonl", f"embedded://{tmp_path / 'data'}"
    file.write_text(filtered(101), encoding="utf-8")
    monkeypatch.setenv("ZAQAR_LITE_MAX_FILTERS_PER_PROJECT", "101")
    assert main(["store", "import", "--store", uri, str(file)]) == 0
    assert len(queues_of(uri)) == 101
    monkeypatch.setenv("ZAQAR_LITE_MAX_FILTERS_PER_PROJEKT", "101")
    assert main(["store", "import", "--store", uri, str(file)]) == 2


def test_an_import_reads_the_settings_of_a_file(tmp_path: Path) -> None:
    file, uri = tmp_path / "export.jsonl", f"embedded://{tmp_path / 'data'}"
    file.write_text(filtered(101), encoding="utf-8")
    settings = tmp_path / "settings.toml"
    settings.write_text("max_filters_per_project = 101\n", encoding="utf-8")
    words = ["--store", uri, "--config", str(settings), str(file)]
    assert main(["store", "import", *words]) == 0
    assert len(queues_of(uri)) == 101


def test_a_queue_that_exists_keeps_its_metadata(tmp_path: Path) -> None:
    file, store = tmp_path / "export.jsonl", Store(f"embedded://{tmp_path / 'data'}")
    for metadata in ({"note": 1}, {"note": 2}):
        file.write_text(HEAD + queue("a", metadata), encoding="utf-8")
        assert main(["store", "import", "--store", store.uri, str(file)]) == 0

    async def read() -> object:
        await store.messages.open()
        record = await store.management.get_queue(QueueRef("p", "a"))
        await store.messages.close()
        return record and record.metadata

    assert asyncio.run(read()) == {"note": 1}
