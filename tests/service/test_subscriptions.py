"""Subscriptions over a store that fails in an operation, or lets another request in there."""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, cast

import pytest

from tests.service.composed import Composed, Failing
from zaqar_lite.domain.errors import Conflict, LimitReached, Unavailable
from zaqar_lite.domain.metadata import ORDERED
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import Secret, Subscription, SubscriptionDraft
from zaqar_lite.service.subscriptions import subscriber_cache
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.management import ManagementStore

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "orders")
ORDERED_DRAFT = SubscriptionDraft("http://receiver.example/", options={"ordered": True})


def subscriptions_over(one: Composed) -> Subscriptions:
    return Subscriptions(
        one.management,
        one.queues,
        one.policies,
        SubscriberCache(one.management),
        confirmations=None,
        limits=one.limits,
        clock=one.clock,
        refused={},
    )


def over_a_failing_store() -> tuple[Subscriptions, Failing]:
    one = Composed()
    store = Failing(one.management)
    one = Composed(one.clock, (one.store, cast(ManagementStore, store)))
    return subscriptions_over(one), store


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


async def test_subscribers_are_read_again_at_a_later_version_or_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, reads = Composed(), list[object]()
    read = one.management.list_records

    def noted(*args: Any, **more: Any) -> Any:
        reads.append(args)
        return read(*args, **more)

    await subscriptions_over(one).create(QUEUE, ORDERED_DRAFT)
    monkeypatch.setattr(one.management, "list_records", noted)
    cache = SubscriberCache(one.management)
    for fresh, version, read_so_far in ((60, 1, 1), (60, 1, 1), (60, 2, 2), (60, 1, 2), (0, 1, 3)):
        monkeypatch.setattr(subscriber_cache, "_FRESH", fresh)
        assert len(await cache.of(QUEUE, version)) == 1
        assert len(reads) == read_so_far


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fails_at", [1, 2])
async def test_a_change_that_failed_is_made_by_the_next(ordered: bool, fails_at: int) -> None:
    subscriptions, store = over_a_failing_store()
    draft = SubscriptionDraft("http://receiver.example/", options={"ordered": not ordered})
    made = await subscriptions.create(QUEUE, draft)
    change = SubscriptionDraft(options={"ordered": ordered})
    store.writes, store.fails_at = 0, fails_at
    # What has changed is told, though the queue's flags do not say it yet.
    with pytest.raises(Unavailable) if ordered or fails_at == 1 else nullcontext():
        await subscriptions.update(QUEUE, made.id, change)
    assert store.writes >= fails_at
    store.fails_at = 0
    await subscriptions.update(QUEUE, made.id, change)
    record = await subscriptions.management.get_queue(QUEUE)
    assert record is not None
    assert record.metadata.get(ORDERED, []) == [made.id] * ordered


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_subscription_whose_queue_can_not_be_made_leaves_nothing(ordered: bool) -> None:
    one = Composed()
    one.limits.max_queues_per_project = 1
    subscriptions = subscriptions_over(one)
    await one.queues.ensure(QueueRef("p", "the-only-one"))
    draft = SubscriptionDraft(A, options={"ordered": ordered})
    with pytest.raises(LimitReached):
        await subscriptions.create(QUEUE, draft)
    assert await subscriptions.page(QUEUE, marker=None, limit=10) == []
    one.limits.max_queues_per_project = 2
    assert (await subscriptions.create(QUEUE, draft)).secret is not None


class Interrupted:
    """A store before whose call number `at` something else is done."""

    def __init__(self, store: ManagementStore) -> None:
        self._store = store
        self.at = self.calls = 0
        self.meanwhile: Callable[[], Awaitable[object]]

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._store, name)
        if not inspect.iscoroutinefunction(act):
            return act

        async def call(*args: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                await self.meanwhile()
            return await act(*args, **more)

        return call


A, B = "http://a.example/", "http://b.example/"
Operation = Callable[[Subscriptions, str], Awaitable[object]]


def rename(subscriptions: Subscriptions, made: str) -> Awaitable[object]:
    return subscriptions.update(QUEUE, made, SubscriptionDraft(B))


def rename_other(subscriptions: Subscriptions, made: str) -> Awaitable[object]:
    """Give the subscriber to the subscription that was made second."""

    async def act() -> None:
        second = (await subscriptions.page(QUEUE, marker=made, limit=1))[0].id
        await subscriptions.update(QUEUE, second, SubscriptionDraft(B))

    return act()


def create(subscriptions: Subscriptions, _: str) -> Awaitable[object]:
    return subscriptions.create(QUEUE, SubscriptionDraft(B))


def order(subscriptions: Subscriptions, made: str) -> Awaitable[object]:
    return subscriptions.update(QUEUE, made, SubscriptionDraft(options={"ordered": True}))


def unorder(subscriptions: Subscriptions, made: str) -> Awaitable[object]:
    return subscriptions.update(QUEUE, made, SubscriptionDraft(options={"ordered": False}))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (rename, create),
        (create, rename),
        (rename, rename_other),
        (order, unorder),
        (unorder, order),
    ],
)
@pytest.mark.parametrize("at", range(1, 10))
async def test_of_two_changes_at_once_one_wins(outer: Operation, inner: Operation, at: int) -> None:
    """Between any two calls of the store another request may do all of its own."""
    one = Composed()
    other = subscriptions_over(one)
    store = Interrupted(one.management)
    first = subscriptions_over(Composed(one.clock, (one.store, cast(ManagementStore, store))))
    made = (await other.create(QUEUE, SubscriptionDraft(A))).id
    await other.create(QUEUE, SubscriptionDraft("http://c.example/"))

    async def meanwhile() -> None:
        with suppress(Conflict, Unavailable):  # while it waits, nothing can be done under its name
            await inner(other, made)

    store.calls, store.at, store.meanwhile = 0, at, meanwhile
    with suppress(Conflict):
        await outer(first, made)
    found = await other.page(QUEUE, marker=None, limit=10)
    assert len({each.subscriber for each in found}) == len(found)
    record = await one.management.get_queue(QUEUE)
    assert record is not None
    assert record.metadata.get(ORDERED, []) == [each.id for each in found if each.is_ordered]


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_trust_that_takes_long_to_make_lets_no_subscriber_in_twice(at: int) -> None:
    one = Composed()
    other = subscriptions_over(one)
    store = Interrupted(one.management)
    first = subscriptions_over(Composed(one.clock, (one.store, cast(ManagementStore, store))))
    draft = SubscriptionDraft("trust+http://a.example/")

    async def trust(_: object, takes: int = 0) -> str:
        one.clock.advance(takes)
        return "trust"

    async def meanwhile() -> None:
        with suppress(Conflict, Unavailable):
            await other.create(QUEUE, draft, trust)

    store.at, store.meanwhile = at, meanwhile
    with suppress(Conflict):
        await first.create(QUEUE, draft, partial(trust, takes=61_000))
    assert len(await other.page(QUEUE, marker=None, limit=10)) == 1


def test_what_is_secret_of_a_subscription_is_not_in_its_text() -> None:
    """It may come into a log, with an error."""
    options = {"post_headers": {"Authorization": "hush"}}
    one = Subscription(
        *("s", QUEUE, "http://example.org/", 60, options, 0, 0),
        secrets=(Secret("hush"),),
        token="hush",
        trust="hush",
    )
    assert "example.org" in repr(one)
    assert "hush" not in repr(one)
