"""Group commit over a real writer that is stopped, or killed, in the middle of a batch."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.drivers.opendata.test_writer import writer_of

from tests.drivers.opendata.store import QUEUE, Store
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.opendata import loading
from zaqar_lite.storage.opendata.database import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stopped(tmp_path: Path) -> AsyncIterator[tuple[Store, int]]:
    """A store with one message, and the process id of its writer, which does not run."""
    store = Store(f"embedded://{tmp_path / 'data'}")
    await store.messages.open()
    await store.post("before")
    pid = writer_of(os.getpid(), tmp_path)
    os.kill(pid, signal.SIGSTOP)
    yield store, pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)  # a stopped one would keep the store from closing
    if store.db._users:
        await store.messages.close()


async def test_nothing_is_read_while_the_memory_goes_back(
    stopped: tuple[Store, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still holds what was not written: who reads it would see it go away again."""
    store, pid = stopped
    begun, may_end = asyncio.Event(), asyncio.Event()
    reload = loading.reload

    async def paused(db: Database, refs: Sequence[QueueRef]) -> None:
        begun.set()
        await may_end.wait()
        await reload(db, refs)

    monkeypatch.setattr(loading, "reload", paused)
    posting = asyncio.create_task(store.post("in doubt"))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    await begun.wait()
    with pytest.raises(Unavailable, match="last good state"):
        await store.messages.stats(QUEUE)
    may_end.set()
    with pytest.raises(Unavailable, match="try again"):
        await posting
    assert (await store.messages.stats(QUEUE)).total in {1, 2}


async def test_closing_waits_for_the_batch_that_is_being_written(
    stopped: tuple[Store, int],
) -> None:
    store, pid = stopped
    posting = asyncio.create_task(store.post("last"))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(store.messages.close())
    await asyncio.sleep(0.3)
    assert not closing.done()
    os.kill(pid, signal.SIGCONT)
    await asyncio.gather(posting, closing)
    await store.restart()
    assert (await store.messages.stats(QUEUE)).total == 2


async def test_who_waits_is_told_when_the_committing_is_cancelled(
    stopped: tuple[Store, int],
) -> None:
    """As the end of an event loop does; who waited for ever would keep it from ending."""
    store, _ = stopped
    posting = asyncio.create_task(store.post("written"))
    await asyncio.sleep(0.1)
    gathered = asyncio.create_task(store.post("gathered meanwhile"))
    await asyncio.sleep(0.1)
    task = store.db.committer._task
    assert task is not None
    task.cancel()
    _, left = await asyncio.wait({posting, gathered}, timeout=5)
    assert not left
    assert posting.cancelled()
    assert gathered.cancelled()
