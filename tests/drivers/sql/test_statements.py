"""Any statement of any operation fails: the operation is undone, in the tables and in memory."""

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path

import apsw
import pytest

from tests.drivers.chaos import Chaos
from tests.drivers.sql.contract_hooks import check_database
from tests.drivers.sql.store import RAM, Store
from tests.drivers.sql.test_counts import OPTIONS, REFS
from tests.drivers.store import HOUR, QUEUE
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.queues import Queues

pytestmark = pytest.mark.anyio
STEPS = 250


async def check_memory(db: Database) -> None:
    """Compare the queues in memory with their rows."""
    await check_database(db)
    for ref in REFS:
        known, stored = db.queues.get(db.connection, ref), Queues().get(db.connection, ref)
        assert (known is None) == (stored is None), ref
        if known is not None and stored is not None:
            assert known.counts()[:7] == stored.counts()[:7], ref
            assert (known.number, known.record) == (stored.number, stored.record), ref


@pytest.mark.parametrize("scheme", ["memory", "embedded"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_statement_that_fails_undoes_its_operation(
    scheme: str, seed: int, tmp_path: Path
) -> None:
    chance, left, failed = random.Random(seed), 0, 0

    def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
        nonlocal left, failed
        if statement.startswith("ROLLBACK"):
            return True
        left -= 1
        failed += left == 0
        return left != 0

    async with Store(RAM if scheme == "memory" else tmp_path / "data", OPTIONS) as store:
        store.db.connection.set_exec_trace(trace)
        chaos, done = Chaos(store, REFS, chance), []
        for _ in range(STEPS):
            left = chance.choice((0, 0, *range(1, 25)))
            done.append(await chaos.step())
            left = 0
            await asyncio.sleep(0)
            try:
                await check_memory(store.db)
            except AssertionError as exc:
                raise AssertionError(f"after {done[-3:]}: {exc}") from exc
        store.db.connection.set_exec_trace(None)
    assert failed > STEPS / 10


async def test_a_rollback_that_fails_does_not_end_the_store() -> None:
    store = Store(RAM)
    db, management, failing = store.db, store.management, ["INSERT INTO queue", "ROLLBACK"]

    def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
        if failing and statement.startswith(failing[0]):
            del failing[0]
            return False
        return True

    db.connection.set_exec_trace(trace)
    with pytest.raises(Unavailable):
        await management.create_queue(REFS[0], {}, max_queues=10)
    assert not failing
    await asyncio.sleep(0)
    await management.create_queue(REFS[0], {}, max_queues=10)
    await asyncio.sleep(0)
    await check_memory(db)


async def test_a_drop_that_is_undone_keeps_what_others_did_before_in_its_batch() -> None:
    store = Store(RAM)
    db, ends = store.db, ["posted", "dropped"]

    def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
        return not statement.startswith("RELEASE") or not ends or ends.pop(0) != "dropped"

    db.connection.set_exec_trace(trace)
    await store.post("stays", to=REFS[0])
    with pytest.raises(Unavailable):
        await store.messages.purge(REFS[0], forget=True)
    db.connection.set_exec_trace(None)
    await check_memory(db)
    assert (await store.messages.stats(REFS[0])).total == 1


async def test_counts_that_can_not_be_written_within_a_batch_are_written_at_its_end(
    tmp_path: Path,
) -> None:
    """A sweep has them written to look for what is due; its error is not that of the batch."""
    async with Store(tmp_path / "data") as store:

        def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
            return not statement.startswith("UPDATE queue SET content")

        posting = asyncio.create_task(store.post("text"))
        await asyncio.sleep(0)
        store.db.connection.set_exec_trace(trace)
        with pytest.raises(Unavailable):
            await store.messages.sweep(100)
        store.db.connection.set_exec_trace(None)
        await posting
        await check_memory(store.db)


async def test_a_request_that_always_fails_undoes_others_once_at_most(tmp_path: Path) -> None:
    """In a file the batch of its first failure is refused; then it has a SAVEPOINT."""
    async with Store(tmp_path / "data") as store:
        db, one = store.db, [NewMessage(b"1", HOUR, 0)]

        def trace(_: apsw.Cursor, statement: str, values: object) -> bool:
            bad = isinstance(values, tuple) and "bad" in values
            return not (bad and statement.startswith("INSERT INTO entry"))

        def post(client: str) -> Awaitable[object]:
            return store.messages.post(QUEUE, one, client_id=client, version=None)

        db.connection.set_exec_trace(trace)
        posts = [
            await asyncio.gather(*map(post, ("good", "bad", "good")), return_exceptions=True)
            for _ in range(3)
        ]
        db.connection.set_exec_trace(None)
        good = [type(answer) is list for answers in posts for answer in answers]
        assert good[1::3] == [False] * 3
        assert good[3::3] == good[5::3] == [True] * 2
        assert db.undone == 1
        assert len(await store.bodies()) == sum(good)


async def test_keys_are_found_without_a_look_at_the_others(tmp_path: Path) -> None:
    """SQLite's own choice is to read all keys of the queue."""
    async with Store(tmp_path / "data") as store:
        steps: list[int] = []

        async def post(first: int, count: int) -> int:
            keys = [IdempotencyKey(str(number), b"") for number in range(first, first + count)]
            new = [NewMessage(b"1", HOUR, 0, key) for key in keys]
            steps.clear()
            await store.messages.post(QUEUE, new, client_id="producer", version=None)
            return len(steps)

        def count() -> bool:
            steps.append(1)
            return False

        store.db.connection.set_progress_handler(count, 10)
        await post(0, 10)
        before = await post(10, 10)
        await post(20, 5_000)
        assert await post(10_000, 10) < 2 * before
