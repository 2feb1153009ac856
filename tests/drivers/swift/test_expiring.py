"""Expiry: by the stored deadline at once, by Swift's expirer some time after it."""

import asyncio
import time

import pytest

from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, extend, give_back
from tests.drivers.swift.conftest import a_queue
from tests.drivers.swift.together import OpenSwift
from zaqar_lite.domain.models import DeadLetter, QueueRef, RetryPolicy
from zaqar_lite.storage.swift import SwiftMessageStore, layout
from zaqar_lite.storage.swift.backend import Backend

pytestmark = pytest.mark.anyio


async def removed_at(queue: QueueUnderTest, name: str) -> int:
    """When Swift removes an object of a queue, in milliseconds."""
    backend: Backend = queue.stores.messages._connection  # type: ignore[attr-defined]
    reply = await backend.objects.head(backend.containers.queue(queue.ref), name)
    return int(reply.headers["X-Delete-At"]) * 1000


async def index_ends(queue: QueueUnderTest, message_id: str) -> int:
    """When Swift removes what tells where a moved message is, in milliseconds."""
    return await removed_at(queue, layout.INDEX + message_id)


async def listed(queue: QueueUnderTest, prefix: str) -> int:
    """How many objects the container still lists."""
    store = queue.stores.messages
    assert isinstance(store, SwiftMessageStore)
    container = store._connection.containers.queue(queue.ref)
    return len(await store._connection.objects.list(container, prefix=prefix))


async def test_swifts_expirer_removes_messages_claims_and_keys(
    open_swift: OpenSwift, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expirer is a process of Swift's own; in production it comes five minutes late."""
    monkeypatch.setattr(layout, "DELETE_AT_SLACK_S", 1)
    queue = a_queue(await open_swift())
    await queue.post("a", "b", ttl=1_000)
    await queue.claim(1, ttl=1_000, grace=0)
    await queue.post("stays")
    give_up = time.monotonic() + 90
    while await listed(queue, layout.MESSAGES) > 1 or await listed(queue, layout.CLAIMS):
        assert time.monotonic() < give_up, "the expirer does not come"
        await asyncio.sleep(0.2)
    assert await queue.bodies() == ["stays"]


async def test_a_moved_message_is_found_by_its_id_for_as_long_as_it_lives(
    open_swift: OpenSwift,
) -> None:
    """Else what acknowledges it would find nothing, and it would be handed out again."""
    queue = a_queue(await open_swift())
    letters = queue.named("letters")
    (message_id,) = await queue.post("a", ttl=HOUR)
    await queue.move(letters, message_id, ttl=HOUR, delay=MINUTE)
    ends = [await index_ends(letters, message_id)]

    async def is_kept() -> None:
        ends.append(await index_ends(letters, message_id))
        message = await letters.get_one(message_id)
        assert ends[-1] > max(ends[-2], message.expires_at)

    await letters.edit(message_id, "b", delay=0, ttl=2 * HOUR)
    await is_kept()
    claim_id = await letters.claim_id(ttl=4 * HOUR)
    await is_kept()
    await letters.renew(claim_id, ttl=6 * HOUR)
    await is_kept()
    await letters.settle(claim_id, extend(message_id, 8 * HOUR))
    await is_kept()
    await letters.settle(claim_id, give_back(message_id))
    claim_id = await letters.claim_id(ttl=MINUTE)
    await letters.release(claim_id, delay=12 * HOUR)
    await is_kept()


async def test_a_queue_that_is_not_used_is_remembered_for_a_month_at_least(
    open_swift: OpenSwift,
) -> None:
    queue = a_queue(await open_swift())
    await queue.post("a")
    rest = await removed_at(queue, layout.TAIL) - time.time() * 1000
    assert 30 * 24 * HOUR < rest < 61 * 24 * HOUR


async def test_a_sweep_buries_nothing_that_is_purged_beside_it(open_swift: OpenSwift) -> None:
    """The purge comes when the sweep has listed the queue, and does not hold its lock yet."""
    queue = a_queue(await open_swift())
    store, target = queue.stores.messages, QueueRef(queue.ref.project, "dead")
    await queue.post("a")
    await queue.claim(1, ttl=MINUTE)
    queue.advance(2 * MINUTE)

    async def purged(_: QueueRef) -> RetryPolicy:
        await store.purge(queue.ref)
        return RetryPolicy(DeadLetter(target, max_claims=1))

    assert (await store.sweep(100, purged)).moved == 0
    assert (await store.stats(target)).total == 0
