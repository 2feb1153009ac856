"""What 0.2.0 kept comes over by an export; its directory is refused, and left as it is.

`export-0.2.0.jsonl` was written by 0.2.0 of a store in which its server and clients had put a
message of every kind. Histories and idempotency keys were in that store, and are in no export.
"""

import asyncio
from pathlib import Path

import pytest

from tests.drivers.sql.store import Store
from tests.store.running import on, store
from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import ClaimRequest, DelayMode, Message, QueueRef, StoreOptions
from zaqar_lite.service.schedules.schedules import DueEntry
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.place import OLD_FILE_NAME
from zaqar_lite.store.checking import check
from zaqar_lite.store.commands import snapshot

EXPORT = Path(__file__).parent / "export-0.2.0.jsonl"
WRITTEN = 1_795_820_656_000
"""When, in milliseconds since 1970."""
YEAR = 365 * 86_400_000
ORDERS, LETTERS, BULK, PUSHED = (
    QueueRef("shop", name) for name in ("orders", "letters", "bulk", "pushed")
)
READY = ["ready", "group-1", "group-2", "urgent", "keyed", "copied"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with what was exported."""
    place = tmp_path / "new"
    assert store("import", place, EXPORT) == 0
    return place


def test_everything_is_there(directory: Path) -> None:
    async def look(store: Store) -> None:
        by_text = {text_of(one): one for one in await store.all_messages(ORDERS, details=True)}
        assert list(by_text) == ["claimed", "parked", "delayed", *READY]
        for text in ("claimed", "delayed"):
            due = by_text[text].delay_expires_at or 0
            assert 50 * YEAR - 60_000 < due - WRITTEN < 50 * YEAR
        assert by_text["claimed"].claim_count == 1
        parked = by_text["parked"]
        assert (parked.parked_until or 0) > WRITTEN + 49 * YEAR
        assert (parked.claim_count, parked.failure_count) == (1, 1)
        (attempt,) = parked.attempts
        assert (attempt.outcome, attempt.reason) == (Ended.FAILED, "busy")
        assert by_text["urgent"].headers == {"kind": "order", "note": "é"}
        assert by_text["ready"].body == '{"text": "ready \u2028 é", "number": 1.0}'.encode()
        assert {one.client_id for one in by_text.values()} == {"producer-1"}
        record = await store.management.get_queue(ORDERS)
        assert record is not None
        assert record.metadata == {
            "_dead_letter_queue": "letters", "_max_claim_count": 2, "_done_retention": 0,
            "_failed_retention": 0, "_default_message_ttl": 1200, "owner": "Zoë",
        }  # fmt: skip
        assert list(await store.management.dead_letter_sources(LETTERS, limit=9)) == ["orders"]

        (letter,) = await store.all_messages(LETTERS, details=True)
        assert letter.origin is not None
        assert (letter.origin.source, letter.origin.reason) == ("orders", "malformed")
        assert [one.outcome.value for one in letter.attempts] == ["failed", "released", "dead"]
        assert letter.attempts[0].detail == "no answer in 5 s: é"
        assert [text_of(one) for one in await store.all_messages(BULK, details=True)] == ["copied"]
        filtered = await store.management.filtered_queues("shop")
        assert [record.queue.name for record in filtered] == ["bulk"]
        (loose,) = await store.all_messages(QueueRef("", "queue.1"))
        assert loose.body == b'"no record"'

    on(directory, look)
    with snapshot(directory / "zaqar.sqlite3") as connection:
        assert not list(check(connection))


def text_of(message: Message) -> str:
    return message.body.decode().removeprefix('{"text": ').strip('"').split(" \u2028")[0]


def test_what_was_ready_is_handed_out_by_priority_and_the_rest_in_its_time(
    directory: Path,
) -> None:
    async def take() -> None:
        clock = Clock(wall=lambda: WRITTEN / 1000)
        messages, management = create(
            f"embedded://{directory}", clock=clock, options=StoreOptions()
        )
        async with messages, management:
            every = ClaimRequest(99, None, DelayMode.HONOUR, 60_000, 60_000, "worker")
            claimed = await messages.claim(ORDERS, every)
            texts = [text_of(one) for one in claimed.messages]
            assert texts == ["urgent", *[text for text in READY if text != "urgent"]]
            await messages.delete(
                ORDERS, [one.id for one in claimed.messages], claim_ids=[claimed.claim_id or ""]
            )
            assert not (await messages.claim(ORDERS, every)).messages
            clock.advance(50 * YEAR)
            await messages.sweep(1_000)
            claimed = await messages.claim(ORDERS, every)
            assert [text_of(one) for one in claimed.messages] == ["claimed", "parked", "delayed"]

    asyncio.run(take())


def test_schedules_subscriptions_and_what_waits_for_subscribers_are_there(directory: Path) -> None:
    async def look(store: Store) -> None:
        kinds = {}
        for kind in ("schedule", "schedule-due", "subscription", "subscriber"):
            (kinds[kind],) = await store.management.list_records(kind, limit=9)
        assert kinds["schedule"].name == "nightly"
        assert kinds["schedule"].expires_at is None
        assert b'"cron":"0 3 * * *"' in kinds["schedule"].value
        assert kinds["schedule-due"].value == b'["shop","nightly"]'
        due = DueEntry("shop", "nightly", kinds["schedule-due"].name)
        assert WRITTEN < due.at <= WRITTEN + 86_400_000
        assert kinds["subscription"].name.startswith("pushed/")
        assert b"https://example.com/hook" in kinds["subscription"].value
        ends = kinds["subscription"].expires_at or 0
        assert abs(ends - WRITTEN - 300 * 86_400_000) < 60_000
        record = await store.management.get_queue(PUSHED)
        assert record is not None
        assert record.metadata == {"~subscribed": 1}
        (note,) = await store.all_messages(QueueRef("~deliveries", "~new.2"))
        assert b'"to be pushed"' in note.body

    on(directory, look, Clock(wall=lambda: WRITTEN / 1000))


def test_a_directory_of_0_2_0_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / OLD_FILE_NAME).write_bytes(b"SQLite format 3\x00" + b"x" * 100)
    for command in ("check", "export", "compact"):
        assert store(command, old) == 2
        error = capsys.readouterr().err
        assert "store of Zaqar Lite 0.2.0" in error
        assert error.count("\n") == 1
        assert "store import NEW_DIRECTORY FILE" in error
        assert "pip install 'zaqar-lite[server]==0.2.0'" in error
        assert f"store export --store embedded:{old} FILE" in error
    assert store("import", old, EXPORT) == 2
    assert [file.name for file in old.iterdir() if file.name != "lock"] == [OLD_FILE_NAME]
    assert (old / OLD_FILE_NAME).stat().st_size == 116
