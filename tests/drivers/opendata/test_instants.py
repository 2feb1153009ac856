"""What holds at the very millisecond, with a clock that stands still: as in the memory store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, NotFound
from zaqar_lite.domain.models import (
    Claimed,
    ClaimRequest,
    DelayMode,
    Edit,
    ListQuery,
    QueueRef,
    StoreOptions,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("project", "queue")
DELAY, TTL = 5_000, 60_000


class Frozen:
    """A store and its clock, which moves only when it is told to."""

    def __init__(self, uri: str) -> None:
        self.clock = Clock(monotonic=lambda: 0.0)
        self.store: MessageStore
        self.store, _ = create_stores(uri, clock=self.clock, options=StoreOptions())

    async def post(self, *, ttl: int = TTL, delay: int = 0) -> str:
        posted = await self.store.post(
            QUEUE, [NewMessage(b'"x"', ttl, delay)], client_id="c", version=None
        )
        return posted[0].id

    async def claim(self, ttl: int = TTL) -> Claimed:
        return await self.store.claim(
            QUEUE,
            ClaimRequest(
                limit=5,
                ttl_ms=ttl,
                grace_ms=0,
                client_id="c",
                delay_mode=DelayMode.HONOUR,
                version=None,
            ),
        )

    async def listed(self, *, delayed: bool = False) -> int:
        page = await self.store.list_messages(QUEUE, ListQuery(limit=5, include_delayed=delayed))
        return len(page.messages)


@pytest.fixture(params=["memory", "embedded"])
async def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Frozen]:
    uri = "memory://" if request.param == "memory" else f"embedded://{tmp_path / 'data'}"
    made = Frozen(uri)
    async with made.store:
        yield made


async def test_a_delay_is_over_at_its_instant_and_not_before(frozen: Frozen) -> None:
    message_id = await frozen.post(delay=DELAY)
    frozen.clock.advance(DELAY - 1)
    assert (await frozen.claim()).claim_id is None
    assert await frozen.listed() == 0
    assert (await frozen.store.stats(QUEUE)).delayed == 1
    frozen.clock.advance(1)
    assert await frozen.listed() == 1
    with pytest.raises(Conflict):
        await frozen.store.edit(QUEUE, Edit(message_id, body=b'"y"'))
    assert (await frozen.store.stats(QUEUE)).ready == 1
    assert len((await frozen.claim()).messages) == 1


async def test_a_claim_at_the_instant_needs_no_one_to_look_before(frozen: Frozen) -> None:
    await frozen.post(delay=DELAY)
    frozen.clock.advance(DELAY)
    assert len((await frozen.claim()).messages) == 1


async def test_a_message_is_gone_at_its_deadline_and_not_before(frozen: Frozen) -> None:
    message_id = await frozen.post()
    frozen.clock.advance(TTL - 1)
    assert await frozen.listed() == 1
    frozen.clock.advance(1)
    assert await frozen.listed() == 0
    assert not await frozen.store.get_messages(QUEUE, [message_id])
    assert (await frozen.claim()).claim_id is None


async def test_a_claim_lapses_at_its_deadline_and_not_before(frozen: Frozen) -> None:
    await frozen.post(ttl=10 * TTL)
    first = await frozen.claim(DELAY)
    frozen.clock.advance(DELAY - 1)
    assert (await frozen.claim()).claim_id is None
    await frozen.store.renew(QUEUE, first.claim_id or "", ttl_ms=DELAY, grace_ms=0)
    frozen.clock.advance(DELAY - 1)
    assert (await frozen.claim()).claim_id is None
    frozen.clock.advance(1)
    with pytest.raises(NotFound):
        await frozen.store.get_claim(QUEUE, first.claim_id or "")
    assert (await frozen.claim()).messages[0].claim_count == 2
