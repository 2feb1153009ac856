"""What an operation looks at does not depend on what else is in the queue."""

import gc
import linecache
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import zaqar_lite.storage.memory as driver
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import DelayMode, QueueRef, Selection, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.memory.messages import MemoryMessageStore

pytestmark = pytest.mark.anyio

CROWD = int(os.environ.get("ZAQAR_TEST_CROWD", "5000"))
"""How many messages stand before the free ones; issue figures are measured with 200,000."""

HOUR = 3_600_000
FOLDER = str(Path(driver.__file__).parent)


async def post(
    store: MemoryMessageStore, queue: QueueRef, count: int, *, delay_ms: int = 0
) -> None:
    message = NewMessage(b'"x"', 10 * HOUR, delay_ms)
    for first in range(0, count, 1_000):
        size = min(1_000, count - first)
        await store.post(queue, [message] * size, client_id="producer", version=None)


async def claim_all(store: MemoryMessageStore, queue: QueueRef) -> None:
    while (
        await store.claim(
            queue,
            Take(
                limit=1_000,
                ttl_ms=HOUR,
                grace_ms=0,
                client_id="c",
                delay_mode=DelayMode.IGNORE,
                version=None,
            ),
        )
    ).messages:
        pass


async def examined_by_a_claim(store: MemoryMessageStore, queue: QueueRef, mode: DelayMode) -> int:
    before = store.examined
    claimed = await store.claim(
        queue,
        Take(
            limit=20,
            ttl_ms=HOUR,
            grace_ms=HOUR,
            client_id="consumer",
            delay_mode=mode,
            version=None,
        ),
    )
    assert len(claimed.messages) == 20
    return store.examined - before


@pytest.mark.parametrize("mode", [DelayMode.IGNORE, DelayMode.HONOUR])
@pytest.mark.parametrize("crowd", ["none", "ready", "delayed", "claimed", "both"])
async def test_a_claim_of_twenty_examines_twenty_entries(
    store: MemoryMessageStore, queue: QueueRef, mode: DelayMode, crowd: str
) -> None:
    if crowd in ("claimed", "both"):
        await post(store, queue, CROWD)
        await claim_all(store, queue)
    if crowd in ("delayed", "both"):
        await post(store, queue, CROWD, delay_ms=HOUR)
    if crowd == "ready":
        await post(store, queue, CROWD)
    await post(store, queue, 20)
    assert await examined_by_a_claim(store, queue, mode) == 20


async def test_a_claim_on_an_exposing_queue_examines_its_limit_twice(
    store: MemoryMessageStore, queue: QueueRef
) -> None:
    """Once to expose a message, once to hand it out; the rest is the sweep's."""
    await post(store, queue, CROWD, delay_ms=HOUR)
    assert await examined_by_a_claim(store, queue, DelayMode.EXPOSE) == 40


async def test_what_has_become_due_is_examined_once(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock
) -> None:
    await post(store, queue, 500, delay_ms=HOUR)
    clock.advance(HOUR)
    """A claim brings a tenth of its budget back, so that no number of them holds it up."""
    examined = [await examined_by_a_claim(store, queue, DelayMode.HONOUR) for _ in range(6)]
    assert examined == [*[100 + 20] * 5, 20]


async def test_a_listing_looks_at_a_page_not_at_the_queue(
    store: MemoryMessageStore, queue: QueueRef
) -> None:
    await post(store, queue, CROWD)
    before = store.examined
    page = await store.list_messages(queue, Selection(limit=20))
    assert len(page.messages) == 20
    assert store.examined - before == 20


async def test_a_listing_passes_a_crowd_in_bounded_steps(
    store: MemoryMessageStore, queue: QueueRef
) -> None:
    await post(store, queue, CROWD, delay_ms=HOUR)
    await post(store, queue, 20)
    before = store.examined
    page = await store.list_messages(queue, Selection(limit=20))
    assert 1 <= len(page.messages) <= 20
    assert store.examined - before <= CROWD + MAX_EXAMINED


async def test_counting_looks_at_no_message(store: MemoryMessageStore, queue: QueueRef) -> None:
    await post(store, queue, CROWD)
    before = store.examined
    stats = await store.stats(queue)
    assert (stats.ready, stats.total) == (CROWD, CROWD)
    assert store.examined == before


class Lines:
    """The source lines of the driver that run while it is active."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(FOLDER):
            return None
        if event == "line":
            self.seen.add(linecache.getline(name, frame.f_lineno).strip())
        return self._trace

    def __enter__(self) -> "Lines":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    @property
    def reading_delays(self) -> set[str]:
        """The lines that read `d`, or the index of delays."""
        return {
            line
            for line in self.seen
            if any(word in line for word in (".delay_expires_at", ".delayed"))
        }


async def claim_and_pop(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock, mode: DelayMode
) -> None:
    """Claim fresh messages, claim them again when the claim has lapsed, and pop the rest."""
    for _ in range(2):
        claimed = await store.claim(
            queue,
            Take(
                limit=20,
                ttl_ms=2 * HOUR,
                grace_ms=HOUR,
                client_id="consumer",
                delay_mode=mode,
                version=None,
            ),
        )
        assert [message.position for message in claimed.messages] == sorted(
            message.position for message in claimed.messages
        )
        assert len(claimed.messages) == 20
        clock.advance(3 * HOUR)
    popped = await store.pop(queue, Take(limit=60, delay_mode=mode, version=None))
    assert len(popped.messages) == 60


async def test_on_a_normal_queue_a_claim_executes_no_line_that_reads_d(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock
) -> None:
    await post(store, queue, 60)
    with Lines() as normal:
        await claim_and_pop(store, queue, clock, DelayMode.IGNORE)
    assert len(normal.seen) > 20, "the trace saw nothing"
    assert normal.reading_delays == set()


async def test_the_trace_would_see_a_line_that_reads_d(
    store: MemoryMessageStore, queue: QueueRef, clock: Clock
) -> None:
    await post(store, queue, 60)
    with Lines() as delayed:
        await claim_and_pop(store, queue, clock, DelayMode.HONOUR)
    assert delayed.reading_delays


async def test_the_garbage_collector_has_nothing_to_look_at_in_a_message(
    store: MemoryMessageStore, queue: QueueRef
) -> None:
    new = [NewMessage(b"%d" % number, HOUR) for number in range(CROWD)]
    delayed = [NewMessage(b"%d" % number, HOUR, 1_000) for number in range(CROWD)]
    gc.collect()
    before = len(gc.get_objects())
    await store.post(queue, new, client_id="producer", version=None)
    for message in delayed[:100]:
        await store.post(queue, [message], client_id="producer", version=None)
    await store.post(queue, delayed, client_id="producer", version=None)
    gc.collect()
    assert len(gc.get_objects()) - before < 2 * CROWD // 50
