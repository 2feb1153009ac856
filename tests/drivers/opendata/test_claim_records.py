"""A claim's record goes with its last message."""

import pytest

from tests.drivers.opendata.store import MINUTE, QUEUE, Store
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import (
    ClaimRequest,
    DelayMode,
    RetryPolicy,
)
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.format.records import ClaimRecord, encode_claim

pytestmark = pytest.mark.anyio


async def test_claims_leave_no_record_behind_their_messages(store: Store) -> None:
    await store.post(*(str(number) for number in range(300)))
    for _ in range(15):
        assert await store.acknowledge() == 20
    assert not await store.records(RecordType.CLAIM)
    claimed = [await store.claim(1) for _ in range(3) if await store.post("again")]
    assert len(await store.records(RecordType.CLAIM)) == 3
    held = [message.id for one in claimed for message in one.messages]
    await store.messages.delete(QUEUE, held[:1], claim_ids=None)
    assert len(await store.records(RecordType.CLAIM)) == 2
    await store.messages.purge(QUEUE)
    assert not await store.records(RecordType.CLAIM)


async def test_a_claim_that_holds_nothing_goes_at_its_end(store: Store) -> None:
    """Earlier versions left such, and so does a page that is lost."""
    await store.post("waits")
    queue = store.db.queues.get(QUEUE)
    assert queue is not None
    claim_id = new_claim_id()
    empty = ClaimRecord(store.clock.now_ms(), 10 * MINUTE, MINUTE, "worker", [])
    key = keys.claim_key(queue.raw, bytes.fromhex(claim_id))
    store.db.puts[key] = encode_claim(empty)
    await store.restart()
    with pytest.raises(NotFound):
        await store.messages.get_claim(QUEUE, claim_id)
    await store.sweep()
    store.clock.advance(11 * MINUTE)
    held = await store.claim()
    await store.sweep()
    assert list(await store.records(RecordType.CLAIM)) == [
        keys.claim_key(queue.raw, bytes.fromhex(held.claim_id or ""))
    ]


async def test_popping_makes_no_claim(store: Store) -> None:
    await store.post("popped")
    popped = await store.messages.claim(
        QUEUE,
        ClaimRequest(
            limit=1,
            delay_mode=DelayMode.IGNORE,
            retries=RetryPolicy(None),
            version=None,
            removes=True,
        ),
    )
    assert len(popped.messages) == 1
    assert not await store.records(RecordType.CLAIM)
