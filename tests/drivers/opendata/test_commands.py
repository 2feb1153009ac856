"""`zaqar-lite store`: check, export and import, as a user runs them."""

import asyncio
import json
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

from zaqar_lite.cli import main
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import (
    DeadLetter,
    DelayMode,
    Message,
    QueueRef,
    Retries,
    Selection,
    StoreOptions,
    Take,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.registry import create_stores

QUEUE, LETTERS = QueueRef("project", "orders"), QueueRef("project", "letters")
METADATA = {
    "é": [1], "_default_message_delay": 0, "_default_message_ttl": 600, "_max_claim_count": 9,
    "_dead_letter_queue": "letters", "_dead_letter_queue_messages_ttl": 600, "_filter": "a = 'b'",
    "_priority": "RULES(TRUE -> 1, DEFAULT 2)", "_done_retention": 0, "_failed_retention": 60,
}  # fmt: skip
T = TypeVar("T")


def on(uri: str, work: Callable[[MessageStore, ManagementStore], Awaitable[T]]) -> T:
    """Work on a store and close it."""

    async def run() -> T:
        messages, management = create_stores(uri, clock=Clock(), options=StoreOptions())
        async with messages, management:
            return await work(messages, management)

    return asyncio.run(run())


async def fill(messages: MessageStore, management: ManagementStore) -> None:
    """A queue with a delayed, a claimed and an ordinary message, and a dead letter."""
    await management.create_queue(QUEUE, METADATA, max_queues=9)

    async def claim(**more: DeadLetter) -> None:
        take = Take(
            1, None, DelayMode.HONOUR, 60_000, 60_000, "worker", Retries(more.get("dead_letter"))
        )
        claimed = await messages.claim(QUEUE, take)
        if not more:
            await messages.release(QUEUE, claimed.claim_id or "")

    async def post(text: str, *, delay_ms: int = 0, priority: int = 100) -> None:
        body = json.dumps(text).encode()
        new = NewMessage(body, 3_600_000, delay_ms, headers={"h": text}, priority=priority)
        await messages.post(QUEUE, [new], client_id="producer", version=None)

    await post("dead")
    await claim()
    await post("claimed")
    await claim(dead_letter=DeadLetter(LETTERS, 1))
    await post("delayed", delay_ms=600_000)
    await post("ordinary", priority=7)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    found = f"embedded://{tmp_path / 'data'}"
    on(found, fill)
    return found


def test_a_good_store_has_no_problems(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", "--store", uri]) == 0
    assert "0 problems" in capsys.readouterr().out


def test_problems_are_named(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = sqlite3.connect(tmp_path / "data" / "queue.sqlite3")
    with database:
        rows = database.execute("SELECT k FROM payload ORDER BY k LIMIT 2")
        first, second = (row[0] for row in rows.fetchall())
        database.execute("DELETE FROM payload WHERE k = ?", (first,))
        database.execute("UPDATE payload SET v = x'00' WHERE k = ?", (second,))
    database.close()
    assert main(["store", "check", "--store", uri]) == 1
    out = capsys.readouterr().out
    assert "has no payload" in out
    assert "checksum does not match" in out
    assert "2 problems" in out


def test_a_check_names_a_wrong_block_of_the_log(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, value = keys.LOG_BLOCK, b"short"
    with sqlite3.connect(tmp_path / "data" / "queue.sqlite3") as database:
        row = (value, crc32(key + value), key)
        database.execute("UPDATE kv SET v = ?, c = ? WHERE k = ?", row)
    database.close()
    assert main(["store", "check", "--store", uri]) == 1
    assert f"{keys.describe(key)}: cut short" in capsys.readouterr().out


def test_queues_move_to_another_store(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "queues.jsonl", f"embedded://{tmp_path / 'other'}"
    assert main(["store", "export", "--store", uri, str(file)]) == 0
    assert main(["store", "import", "--store", other, str(file)]) == 0
    assert "imported 4 messages into 1 queues" in capsys.readouterr().out
    before, after = on(uri, contents), on(other, contents)
    assert [without_id(message) for message in before[1]] == [
        without_id(message) for message in after[1]
    ]
    assert before[0] == after[0]
    assert main(["store", "check", "--store", other]) == 0


async def contents(
    messages: MessageStore, management: ManagementStore
) -> tuple[object, list[Message]]:
    found: list[Message] = []
    for ref in (QUEUE, LETTERS):
        page = await messages.list_messages(
            ref, Selection(limit=20, include_claimed=True, include_delayed=True)
        )
        found += page.messages
    record = await management.get_queue(QUEUE)
    assert record is not None
    return record.metadata, found


def without_id(message: Message) -> tuple[object, ...]:
    return (
        message.body, message.created_at, message.expires_at, message.ttl_ms, message.claim_count,
        message.headers, message.client_id, message.origin and message.origin.source,
    )  # fmt: skip


ORIGIN = {
    "source": "orders", "moved_at": 1, "claim_count": 1,
    "last_claim_id": "0" * 32, "last_client_id": None,
}  # fmt: skip
MESSAGE = {
    "project": "p", "queue": "q", "body": "{}", "created_at": 3_000_000_000_000,
    "expires_at": 4_000_000_000_000, "ttl_ms": 1, "origin": ORIGIN,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": None}, {"body": "NaN"}, {"body": "["}, {"body": "[" * 9_999 + "]" * 9_999},
        {"body": '"\ud800"'}, {"queue": "a/b"}, {"queue": "\ud800"}, {"project": "x" * 65_534},
        {"created_at": -1}, {"created_at": True}, {"expires_at": 9_000_000_000_000},
        {"expires_at": 2**80}, {"ttl_ms": 2**63}, {"ttl_ms": None}, {"delayed_until": 1.5},
        {"claimed_until": "soon"}, {"claim_count": 0x1_0000}, {"priority": 256},
        {"client_id": 5}, {"client_id": []}, {"headers": "text"}, {"headers": {"a": 1}},
        {"headers": {"x" * 70_000: ""}}, {"origin": {}}, {"origin": {**ORIGIN, "source": 5}},
        {"origin": {**ORIGIN, "moved_at": None}}, {"origin": {**ORIGIN, "claim_count": -1}},
        {"origin": {**ORIGIN, "last_claim_id": ""}}, {"origin": {**ORIGIN, "last_client_id": []}},
    ],
    ids=lambda wrong: ascii(wrong)[:40],
)  # fmt: skip
def test_a_wrong_line_is_named_and_stores_nothing(
    wrong: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "queues.jsonl", f"embedded://{tmp_path / 'data'}"
    lines: list[object] = [
        {"format": "zaqar-lite", "version": 1},
        {"queue": {"project": "p", "name": "q", "metadata": {}}},
        *[{"message": MESSAGE}] * 600,
        {"message": {**MESSAGE, **wrong}},
    ]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["store", "import", "--store", store, str(file)]) == 2
    assert "Line 603 can't be imported" in capsys.readouterr().err

    async def count(_: MessageStore, management: ManagementStore) -> int:
        return await management.count_queues("p")

    assert on(store, count) == 0


def test_a_failed_import_says_that_a_part_may_be_stored(tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    message = {**MESSAGE, "body": json.dumps("x" * 500)}
    lines = [{"format": "zaqar-lite", "version": 1}, *[{"message": message}] * 3_000]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    store = f"embedded://{tmp_path / 'data'}"
    command = [sys.executable, "-m", "zaqar_lite.cli", "store", "import", "--store", store]
    limited = f"ulimit -f 1000; exec {shlex.join([*command, str(file)])}"  # of 512 or 1024 bytes
    done = subprocess.run(
        ["sh", "-c", limited], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "into an empty store" in done.stderr


def test_there_must_be_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nothing"
    assert main(["store", "check", "--store", f"embedded://{missing}"]) == 2
    assert "There is no store" in capsys.readouterr().err
    assert not missing.exists()
