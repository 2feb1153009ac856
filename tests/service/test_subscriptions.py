"""Subscriptions over a store that fails at one of the writes of an operation."""

from contextlib import nullcontext, suppress
from typing import cast

import pytest

from tests.service.composed import Composed, Failing
from zaqar_lite.domain.errors import Conflict, Unavailable
from zaqar_lite.domain.metadata import ORDERED
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import SubscriptionDraft
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.management import ManagementStore

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "orders")
ORDERED_DRAFT = SubscriptionDraft("http://receiver.example/", options={"ordered": True})


def over_a_failing_store() -> tuple[Subscriptions, Failing]:
    one = Composed()
    store = Failing(one.management)
    management = cast(ManagementStore, store)
    one = Composed(one.clock, (one.store, management))
    made = Subscriptions(
        management,
        one.queues,
        one.policies,
        SubscriberCache(management),
        confirmations=None,
        limits=one.limits,
        clock=one.clock,
        refused={},
    )
    return made, store


@pytest.mark.parametrize("fails_at", [1, 2, 3])
async def test_a_deletion_that_fails_leaves_no_subscriber_there_twice(fails_at: int) -> None:
    """The writes: the subscription, the name of its subscriber, the queue's flags."""
    subscriptions, store = over_a_failing_store()
    first = await subscriptions.create(QUEUE, ORDERED_DRAFT)
    before = await subscriptions.get(QUEUE, first.id)
    store.writes, store.fails_at = 0, fails_at
    with pytest.raises(Unavailable) if fails_at == 1 else nullcontext():
        await subscriptions.delete(QUEUE, first.id)
    assert store.writes >= fails_at
    store.fails_at = 0
    subscriptions.clock.advance(1)
    with suppress(Conflict):
        await subscriptions.create(QUEUE, ORDERED_DRAFT)
    (only,) = await subscriptions.page(QUEUE, marker=None, limit=10)
    ended = subscriptions.subscriber_cache.has_ended
    assert (ended(before), ended(only)) == (fails_at != 1, False)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fails_at", [1, 2])
async def test_a_change_that_failed_is_made_by_the_next(ordered: bool, fails_at: int) -> None:
    subscriptions, store = over_a_failing_store()
    draft = SubscriptionDraft("http://receiver.example/", options={"ordered": not ordered})
    made = await subscriptions.create(QUEUE, draft)
    change = SubscriptionDraft(options={"ordered": ordered})
    store.writes, store.fails_at = 0, fails_at
    with pytest.raises(Unavailable):
        await subscriptions.update(QUEUE, made.id, change)
    store.fails_at = 0
    await subscriptions.update(QUEUE, made.id, change)
    record = await subscriptions.management.get_queue(QUEUE)
    assert record is not None
    assert record.metadata.get(ORDERED, []) == [made.id] * ordered
