"""Export and import of queues: the file, its lines, and what a store takes from them."""

import asyncio
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.sql.store import Store
from tests.drivers.store import HOUR, OTHER, QUEUE, THIRD
from tests.store.running import on, run, store
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import MAX_RECORD, Message, QueueRef
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.store.transfer import parse

HEAD = '{"format":"zaqar-lite","version":1}\n'
LINE_ENDS = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"


def fill(directory: Path, *texts: str, metadata: Mapping[str, Any] | None = None) -> None:
    """Make a queue with these messages, whose headers are their texts."""

    async def work(store: Store) -> None:
        await store.management.create_queue(QUEUE, metadata or {}, max_queues=9)
        for text in texts:
            body = json.dumps(text, ensure_ascii=False).encode()
            await store.post(NewMessage(body, HOUR, headers={"h": text[:99]}))

    on(directory, work)


def queues_of(directory: Path, project: str = "p") -> list[str]:
    async def work(store: Store) -> list[str]:
        found = await store.management.list_queues(project, limit=1_000)
        return [record.queue.name for record in found]

    return on(directory, work)


def queue(name: str, metadata: object = None, project: str = "p") -> str:
    described = {"project": project, "name": name, "metadata": metadata or {}}
    return json.dumps({"queue": described}) + "\n"


def queue_with(value: str) -> str:
    return f'{{"queue":{{"project":"p","name":"n","metadata":{{"a":{value}}}}}}}\n'


def message_with(**fields: object) -> str:
    required = {"project": "p", "queue": "good", "body": "1"}
    times = {"created_at": 0, "expires_at": 1, "ttl_ms": 1}
    return json.dumps({"message": required | times | fields}) + "\n"


LONG = "x" * 70_000
"""More than a text of a line may have."""


# -- the file --


def test_a_store_moves_as_it_is(directory: Path, tmp_path: Path) -> None:
    """Once, and again: the second file says the same, but that a lease has become a delay."""
    first, second, other = tmp_path / "first", tmp_path / "second", tmp_path / "other"
    assert store("export", directory, first) == 0
    assert store("import", other, first) == 0
    assert store("check", other) == 0
    assert store("export", other, second) == 0
    text = first.read_text("utf-8")
    assert text.count('"claimed_until"') == 1
    assert second.read_text("utf-8") == text.replace('"claimed_until"', '"delayed_until"')
    assert '"parked_until"' in text
    for queue in (QUEUE, OTHER, THIRD):
        before, after = on(directory, listed(queue)), on(other, listed(queue))
        assert [without_id(one) for one in after] == [without_id(one) for one in before]
        assert not {one.id for one in before} & {one.id for one in after}


def listed(queue: QueueRef) -> Callable[[Store], Awaitable[list[Message]]]:
    return lambda store: store.all_messages(queue, details=True)


def without_id(message: Message) -> tuple[object, ...]:
    return (
        message.body, message.created_at, message.expires_at, message.ttl_ms, message.claim_count,
        message.failure_count, message.headers, message.client_id, message.origin,
        message.parked_until, list(message.attempts),
    )  # fmt: skip


def test_an_export_runs_beside_the_server(directory: Path) -> None:
    async def beside(store: Store) -> bytes:
        await store.post("new")
        return (await asyncio.to_thread(run, "export", directory)).stdout

    assert b'"new' in on(directory, beside)


def test_an_export_may_be_of_a_project_or_a_queue(
    directory: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for words, count in (
        (["--project", "project"], 12), (["--project", "another"], 1),
        (["--queue", "third"], 2), (["--queue", "another"], 1),
    ):  # fmt: skip
        assert store("export", directory, "-", *words) == 0
        assert capsysbinary.readouterr().out.count(b"\n") == count, words


def test_what_has_expired_stays_behind(
    directory: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def expire(store: Store) -> None:
        await store.post(NewMessage(b'"gone"', 1), NewMessage(b'"kept"', HOUR))
        await asyncio.sleep(0.01)

    on(directory, expire)
    assert store("export", directory) == 0
    out = capsysbinary.readouterr().out
    assert b"kept" in out
    assert b"gone" not in out


def test_an_export_that_fails_leaves_the_file_of_an_earlier_one(
    directory: Path, tmp_path: Path
) -> None:
    file, mask = tmp_path / "export.jsonl", os.umask(0)
    try:
        assert store("export", directory, file) == 0
    finally:
        os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o600, "somebody else may read it"
    before = file.read_bytes()
    assert store("export", f"{tmp_path}/typo", file) == 2
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "export.jsonl"]


def test_an_export_that_is_interrupted_leaves_nothing_beside_its_file(tmp_path: Path) -> None:
    fill(tmp_path / "data", "x" * 1_000_000)
    done = limited(100, "export", tmp_path / "data", tmp_path / "export.jsonl")
    assert done.returncode == 2, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def limited(blocks: int, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run `zaqar-lite store` where a file may have so many blocks."""
    command = shlex.join([sys.executable, "-m", "zaqar_lite.cli", "store", *map(str, words)])
    script = f"ulimit -f {blocks}; exec {command}"
    return subprocess.run(["sh", "-c", script], check=False, capture_output=True, timeout=60)


def test_an_export_takes_the_place_of_an_earlier_one_as_it_was(
    directory: Path, tmp_path: Path
) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "export.jsonl"
    real.write_text("earlier", encoding="utf-8")
    real.chmod(0o644)
    link.symlink_to(real.name)
    assert store("export", directory, link) == 0
    assert link.is_symlink()
    assert b"grouped" in real.read_bytes()
    assert real.stat().st_mode & 0o777 == 0o600


def test_an_export_goes_into_what_is_no_file(directory: Path, tmp_path: Path) -> None:
    done = run("export", directory, "/dev/stdout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(HEAD.encode())
    assert store("export", directory, "/dev/null") == 0
    assert Path("/dev/null").is_char_device()
    assert store("export", directory, tmp_path) == 2


@pytest.mark.parametrize("text", ["", "\n", " \r\n", '{"format":"another","version":1}\n'])
def test_what_is_no_export_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(text, encoding="utf-8")
    assert store("import", tmp_path / "data", file) == 2
    error = capsys.readouterr().err
    assert f"the file must begin with {HEAD.strip()}" in error
    assert error.count("\n") == 1


# -- its lines --


def test_what_looks_like_the_end_of_a_line_moves_to_another_store(tmp_path: Path) -> None:
    """By standard output and input, and where the locale knows ASCII alone."""
    fill(tmp_path / "data", LINE_ENDS, "é", metadata={"note": LINE_ENDS})
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    exported = run("export", tmp_path / "data", environment=ascii_only)
    assert exported.returncode == 0, exported.stderr
    other = tmp_path / "other"
    imported = run("import", other, "-", environment=ascii_only, given=exported.stdout)
    assert imported.returncode == 0, imported.stderr
    assert not run("check", other, environment=ascii_only).returncode

    async def contents(store: Store) -> list[object]:
        record = await store.management.get_queue(QUEUE)
        found = await store.all_messages(details=True)
        return [record and record.metadata, *[(m.body, m.headers) for m in found]]

    bodies = [json.dumps(text, ensure_ascii=False).encode() for text in (LINE_ENDS, "é")]
    assert on(other, contents) == [
        {"note": LINE_ENDS}, (bodies[0], {"h": LINE_ENDS}), (bodies[1], {"h": "é"})
    ]  # fmt: skip


def test_a_record_that_was_sealed_is_longer_than_it_was_and_moves_all_the_same(
    tmp_path: Path,
) -> None:
    sealed = json.dumps("x" * (MAX_RECORD * 4 // 3)).encode()

    async def put(store: Store) -> None:
        await store.management.put_record("schedule", "p", "s", sealed, expected=0)

    fill(tmp_path / "data", "text")
    on(tmp_path / "data", put)
    file, other = tmp_path / "export.jsonl", tmp_path / "other"
    assert store("export", tmp_path / "data", file) == 0
    assert store("import", other, file) == 0
    moved = on(other, lambda store: store.management.get_record("schedule", "p", "s"))
    assert moved is not None
    assert moved.value == sealed


def test_an_import_needs_the_server_to_stop(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(HEAD, encoding="utf-8")

    async def beside(_: Store) -> bytes:
        return (await asyncio.to_thread(run, "import", directory, file)).stderr

    assert b"Another server" in on(directory, beside)


def test_an_import_that_fails_stores_nothing_and_is_done_again(tmp_path: Path) -> None:
    """Here every file may have half a megabyte."""
    file, directory = tmp_path / "export.jsonl", tmp_path / "data"
    fill(directory, "before")
    text = json.dumps("x" * 500)
    lines = HEAD + queue("good") + message_with(body=text, expires_at=4_000_000_000_000) * 3_000
    file.write_text(lines, encoding="utf-8")
    done = limited(1_000, "import", directory, file)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert store("check", directory) == 0
    assert queues_of(directory) == []
    assert on(directory, Store.bodies) == ["before"]
    assert store("import", directory, file) == 0
    assert len(on(directory, listed(QueueRef("p", "good")))) == 3_000
    assert store("check", directory) == 0


def test_an_import_that_is_killed_once_all_is_stored_is_not_stored_twice(
    directory: Path, tmp_path: Path
) -> None:
    """It had no time to say so; then it is run again."""
    file, target = tmp_path / "export.jsonl", tmp_path / "target"
    assert run("export", directory, file).returncode == 0
    code = (
        "import os, sys; from zaqar_lite.store import commands\n"
        "async def load(*given):\n"
        "    await real(*given); os.kill(os.getpid(), 9)\n"
        "real, commands.load = commands.load, load\n"
        "from zaqar_lite.cli import main; main(sys.argv[1:])"
    )
    words = [sys.executable, "-c", code, "store", "import", str(target), str(file)]
    assert subprocess.run(words, check=False, timeout=60).returncode == -9
    stored = [one.id for one in on(target, listed(QUEUE))]
    assert stored
    again = run("import", target, file)
    assert again.returncode == 2
    assert b"This file is in the store already" in again.stderr
    assert [one.id for one in on(target, listed(QUEUE))] == stored
    with file.open("a", encoding="utf-8") as more:
        more.write("\n")
    assert run("import", target, file).returncode == 0
    assert len(on(target, listed(QUEUE))) == 2 * len(stored)


MESSAGE = {"created_at": 3_000_000_000_000, "expires_at": 4_000_000_000_000, "ttl_ms": 1}
ORIGIN = {
    "source": "orders", "moved_at": 1, "claim_count": 1,
    "last_claim_id": "0" * 32, "last_client_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": None}, {"body": "NaN"}, {"body": "["}, {"body": "[" * 9_999 + "]" * 9_999},
        {"body": '"\ud800"'}, {"queue": "a/b"}, {"queue": "\ud800"}, {"queue": ".."},
        {"project": "x" * 65_534}, {"created_at": -1}, {"created_at": True},
        {"expires_at": 300_000_000_000_000}, {"expires_at": 2**80}, {"ttl_ms": 2**63},
        {"ttl_ms": None}, {"delayed_until": 1.5}, {"claimed_until": "soon"},
        {"priority": 256}, {"client_id": 5}, {"client_id": []},
        {"headers": "text"}, {"headers": {"a": 1}}, {"headers": {"x" * 70_000: ""}},
        {"attempts": [{"number": 1, "claimed_at": 0, "ended_at": 0, "outcome": "other"}]},
        {"origin": {}}, {"origin": {**ORIGIN, "source": 5}},
        {"origin": {**ORIGIN, "moved_at": None}}, {"origin": {**ORIGIN, "last_client_id": []}},
    ],
    ids=lambda wrong: ascii(wrong)[:40],
)  # fmt: skip
def test_a_wrong_message_is_named(wrong: dict[str, object]) -> None:
    text = HEAD + message_with(**MESSAGE) + message_with(**MESSAGE | wrong)
    with pytest.raises(Invalid, match=r"^Line 3 can't be imported: .+\. Nothing was stored\.$"):
        list(parse(io.BytesIO(text.encode())))


# -- what a queue may be --

WRONG_METADATA: dict[str, tuple[object, str]] = {
    "filter": ({"_filter": "bad ("}, "position"),
    "priority": ({"_priority": "RULES("}, "position"),
    "ttl": ({"_default_message_ttl": "x"}, "got `str` - at `$._default_message_ttl`"),
    "post size": ({"_max_messages_post_size": "z"}, "_max_messages_post_size"),
    "claim count": ({"_max_claim_count": -1}, "at `$._max_claim_count`"),
    "claim count too high": ({"_max_claim_count": 1 << 40}, "at `$._max_claim_count`"),
    "own letters": ({"_dead_letter_queue": "bad"}, "another queue"),
    "chain": ({"_dead_letter_queue": "source"}, "do not chain"),
    "encryption": ({"_enable_encrypt_messages": True}, "does not encrypt"),
    "too large": ({"note": "x" * 70_000}, "65536 are allowed"),
    "wide number": ({"note": 1 << 70}, "64 bits"),
    "depth": ({"note": json.loads("[" * 600 + "]" * 600)}, "deep"),
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
        queue_with("[" * 99_999 + "]" * 99_999), queue_with("1e999"),
        '{"queue":{"project":"p","name":"n","metadata":[]}}\n',
        message_with(headers={LONG: ""}), '{"queue":null}\n',
        message_with(attempts=[
            {"number": 1, "claimed_at": 0, "ended_at": 0, "outcome": "failed", "detail": LONG}
        ]),
        json.dumps({"record": {"kind": LONG, "project": "p", "name": "n", "value": "1"}}) + "\n",
        '{"queue":"text"}\n', '{"other":1}\n', "[1]\n", '"queue"\n', "\xff\n", "null\n",
    ],
    ids=lambda line: line[:60],
)  # fmt: skip
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(Invalid, match=r"^Line 2 can't be imported: .+\. Nothing was stored\.$"):
        list(parse(io.BytesIO((HEAD + line).encode("latin-1"))))


def refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    file, directory = tmp_path / "export.jsonl", tmp_path / "data"
    file.write_bytes(text.encode())
    assert store("import", directory, file) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert queues_of(directory) == []
    return error


def filtered(count: int) -> str:
    return HEAD + "".join(queue(f"q{number}", {"_filter": "TRUE"}) for number in range(count))


def test_an_import_counts_filters_with_those_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Line 102" in refused(filtered(101), tmp_path, capsys)
    file, directory = tmp_path / "export.jsonl", tmp_path / "data"
    for end in ("", "\n"):  # the second time they are there
        file.write_text(filtered(100) + end, encoding="utf-8")
        assert store("import", directory, file) == 0
    file.write_text(HEAD + queue("more", {"_filter": "TRUE"}), encoding="utf-8")
    assert store("import", directory, file) == 2
    file.write_text(HEAD + queue("more", {"_filter": "TRUE"}, project="q"), encoding="utf-8")
    assert store("import", directory, file) == 0


def test_an_import_takes_the_limits_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, directory = tmp_path / "export.jsonl", tmp_path / "data"
    file.write_text(filtered(101), encoding="utf-8")
    other, settings = tmp_path / "other", tmp_path / "settings.toml"
    settings.write_text("max_filters_per_project = 101\n", encoding="utf-8")
    assert store("import", "--config", settings, other, file) == 0
    assert len(queues_of(other)) == 101
    monkeypatch.setenv("ZAQAR_LITE_MAX_FILTERS_PER_PROJECT", "101")
    assert store("import", directory, file) == 0
    assert len(queues_of(directory)) == 101
    monkeypatch.setenv("ZAQAR_LITE_MAX_FILTERS_PER_PROJEKT", "101")
    assert store("import", directory, file) == 2


def test_a_queue_and_a_record_that_exist_keep_what_they_have(tmp_path: Path) -> None:
    file, directory = tmp_path / "export.jsonl", tmp_path / "data"
    for value in (1, 2):
        one = {"kind": "k", "project": "p", "name": "n", "value": str(value)}
        lines = HEAD + queue("a", {"note": value}) + json.dumps({"record": one})
        file.write_text(lines, encoding="utf-8")
        assert store("import", directory, file) == 0

    async def read(store: Store) -> list[object]:
        described = await store.management.get_queue(QueueRef("p", "a"))
        record = await store.management.get_record("k", "p", "n")
        return [described and described.metadata, record and record.value]

    assert on(directory, read) == [{"note": 1}, b"1"]
