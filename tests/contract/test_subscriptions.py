"""Subscriptions on every management store: they are records, and mark their queue."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.contract.serving import Server, race
from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest, some
from zaqar_lite.domain import metadata
from zaqar_lite.domain.errors import Conflict, Invalid, LimitReached, QuotaReached
from zaqar_lite.domain.metadata import ORDERED
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.quotas import UNLIMITED, Quota
from zaqar_lite.domain.subscriptions import SubscriptionDraft
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.service.delivery.outbox import decode_outbox_message, outbox_queue
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.service.subscriptions import subscriptions as subscriptions_module

pytestmark = pytest.mark.anyio
MOST = 3


@pytest.fixture
def server(stores: Stores) -> Server:
    return Server(stores)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow few subscriptions in strict order."""
    for module in (metadata, subscriptions_module):
        monkeypatch.setattr(module, "MAX_ORDERED", MOST)


def draft(number: int = 0, ttl: int | None = None, *, ordered: bool = False) -> SubscriptionDraft:
    options: dict[str, object] = {"n": number, **({"ordered": True} if ordered else {})}
    return SubscriptionDraft(f"http://receiver.example/{number}", ttl, options)


async def test_of_racing_subscribers_one_makes_it(server: Server, queue: QueueUnderTest) -> None:
    made = await race([subscriber(server, queue)], [0] * 5)
    page = await server.subscriptions.page(queue.ref, marker=None, limit=10)
    assert [subscription.id for subscription in page] == [*{*made}]
    await server.subscriptions.confirm(queue.ref, page[0].id, confirmed=True, token=None)
    with pytest.raises(Conflict):
        await server.subscriptions.create(queue.ref, draft())


def subscriber(
    server: Server, queue: QueueUnderTest, *, ordered: bool = False
) -> Callable[[int], Awaitable[str]]:
    """Makes a subscription of a number, and answers its id."""

    async def subscribe(number: int) -> str:
        return (await server.subscriptions.create(queue.ref, draft(number, ordered=ordered))).id

    return subscribe


@pytest.mark.parametrize(
    ("quota", "most_per_queue", "refusal"),
    [(Quota(subscriptions=3), 200, QuotaReached), (UNLIMITED, 3, LimitReached)],
    ids=["of a project", "of a queue"],
)
async def test_racing_subscribers_fill_a_bound_exactly(
    stores: Stores,
    queue: QueueUnderTest,
    quota: Quota,
    most_per_queue: int,
    refusal: type[Exception],
) -> None:
    peers = await stores.peers(2)
    servers = [Server(one, quota, most_per_queue=most_per_queue) for one in peers]
    makes = [subscriber(one, queue) for one in servers]
    made = await race(makes, range(6), refusal)
    assert len(made) == 3
    for one in made[:2]:
        await servers[0].subscriptions.delete(queue.ref, one)
    # Those that fit are not refused.
    assert len(await race(makes, range(6, 8))) == 2
    assert await servers[1].subscriptions.kind.count(queue.ref.project, 10) == 3


async def test_a_full_queue_takes_no_room_from_another(
    stores: Stores, queue: QueueUnderTest
) -> None:
    server = Server(stores, most_per_queue=1)
    near = QueueRef(queue.ref.project, f"{queue.ref.name}-2")
    for one in (near, queue.ref):
        await server.subscriptions.create(one, draft())
        with pytest.raises(LimitReached, match="The queue has 1 subscriptions"):
            await server.subscriptions.create(one, draft(1))


async def test_who_races_for_the_last_room_with_itself_is_let_in(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [Server(one, Quota(subscriptions=1)) for one in await stores.peers(2)]
    made = await race([subscriber(one, queue) for one in servers], [0] * 4)
    assert len({*made}) == 1


async def test_other_servers_learn_of_its_end_from_the_queues_record(
    server: Server, queue: QueueUnderTest, stores: Stores
) -> None:
    other = Server((await stores.peers(2))[1])
    made = await server.subscriptions.create(queue.ref, draft())
    for count in (1, 0):
        record = await other.management.get_queue(queue.ref)
        assert len(await other.subscribers.of(queue.ref, some(record).version)) == count
        await server.subscriptions.delete(queue.ref, made.id)


async def test_other_servers_learn_of_a_topics_subscriptions_from_its_messages(
    server: Server, queue: QueueUnderTest, stores: Stores
) -> None:
    topic = topic_ref(queue.ref.project, queue.ref.name)
    other = Server((await stores.peers(2))[1])
    topics = server.topics
    lane = outbox_queue(topic.project)
    seen: list[int] = []
    made = None
    for _ in range(3):
        admitted = await topics.admit(topic, 1)
        posted = await topics.post(
            topic, [Draft(b"1")], client_id="c", batch_key=None, admitted=admitted
        )
        (message,) = await stores.messages.get_messages(lane, [posted[0].id])
        note = decode_outbox_message(message.body)
        found = await other.subscribers.of(topic, note.version)
        seen.append(len(found))
        await stores.messages.delete(lane, [message.id], claim_ids=None)
        if made is None:
            made = await server.subscriptions.create(topic, draft())
        else:
            await server.subscriptions.delete(topic, made.id)
    assert seen == [0, 1, 0]


async def test_marks_its_queue_for_other_servers(
    server: Server, queue: QueueUnderTest, stores: Stores
) -> None:
    other = Server((await stores.peers(2))[1])
    await other.queues.create(queue.ref, {"a": 1})
    assert not (await other.policies.get(queue.ref)).subscribed
    made = await server.subscriptions.create(queue.ref, draft())
    other.policies.forget(queue.ref)
    assert (await other.policies.get(queue.ref)).subscribed
    # It outlives its queue, and marks the next one of that name.
    await other.queues.delete(queue.ref)
    await other.queues.ensure(queue.ref)
    assert (await other.policies.get(queue.ref)).subscribed
    await server.subscriptions.flags.clear(queue.ref)
    assert (await server.policies.get(queue.ref)).subscribed
    await server.subscriptions.delete(queue.ref, made.id)
    await server.subscriptions.flags.clear(queue.ref)
    server.policies.forget(queue.ref)
    assert not (await server.policies.get(queue.ref)).subscribed
    assert await server.queues.metadata(queue.ref) == await server.queues.metadata(
        QueueRef(queue.ref.project, "none")
    )


async def test_disabling_tells_whether_it_was_not_so_before(
    server: Server, queue: QueueUnderTest
) -> None:
    made_id = (await server.subscriptions.create(queue.ref, draft())).id
    made = await server.subscriptions.get(queue.ref, made_id)
    assert await server.subscriptions.disable(made, "the receiver answered 410")
    assert not await server.subscriptions.disable(made, "again")
    found = await server.subscriptions.get(queue.ref, made.id)
    assert some(found.disabled).reason == "the receiver answered 410"
    await server.subscriptions.delete(queue.ref, made.id)
    assert not await server.subscriptions.disable(made, "gone")


# Subscriptions in strict order: as many as there may be.


async def test_racing_subscribers_become_as_many_ordered_as_there_may_be(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [Server(one) for one in await stores.peers(2)]
    makes = [subscriber(one, queue, ordered=True) for one in servers]
    made = await race(makes, range(2 * MOST), Invalid)
    assert len(made) == MOST
    assert {*await ordered_of(stores, queue)} == {*made}
    left = await servers[0].subscriptions.page(queue.ref, marker=None, limit=10)
    assert {one.id for one in left} == {*made}, "one that was refused is still there"
    # A server that has not seen that others ended lets their successors in.
    await servers[1].subscriptions.delete(queue.ref, made[0])
    await makes[0](2 * MOST)


async def test_subscriptions_that_race_for_the_last_line_change_one_of_them(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [Server(one) for one in await stores.peers(2)]
    made = [
        await subscriber(servers[0], queue, ordered=number < MOST - 1)(number)
        for number in range(MOST + 1)
    ]

    def changer(server: Server) -> Callable[[str], Awaitable[object]]:
        ordered = SubscriptionDraft(None, None, {"ordered": True})
        return lambda one: server.subscriptions.update(queue.ref, one, ordered)

    changed = await race([changer(one) for one in servers], made[-2:], Invalid)
    assert len(changed) == 1
    page = await servers[0].subscriptions.page(queue.ref, marker=None, limit=10)
    assert {*await ordered_of(stores, queue)} == {one.id for one in page if one.is_ordered}
    assert sum(one.is_ordered for one in page) == MOST


async def test_a_change_that_fails_takes_no_line(stores: Stores, queue: QueueUnderTest) -> None:
    server = Server(stores)
    for number in range(2):
        made = await server.subscriptions.create(queue.ref, draft(number))
    taken = draft(0, ordered=True)
    with pytest.raises(Conflict, match="another subscription with this subscriber"):
        await server.subscriptions.update(queue.ref, made.id, taken)
    assert await ordered_of(stores, queue) == []


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_line_that_a_crash_left_out_is_taken_at_the_next_try(
    stores: Stores, queue: QueueUnderTest, confirmed: bool
) -> None:
    server = Server(stores)
    await server.subscriptions.create(queue.ref, draft())
    last = draft(1, ordered=True)
    made = await server.subscriptions.create(queue.ref, last)
    if confirmed:  # as who is a queue is at once, before its queue's record names it
        await server.subscriptions.confirm(queue.ref, made.id, confirmed=True, token=None)
    record = await stores.management.get_queue(queue.ref)
    assert record is not None
    crashed = {name: value for name, value in record.metadata.items() if name != ORDERED}
    await stores.management.update_queue(replace(record, metadata=crashed))
    with pytest.raises(Conflict) if confirmed else nullcontext():
        assert (await server.subscriptions.create(queue.ref, last)).id == made.id
    assert await ordered_of(stores, queue) == [made.id]


async def ordered_of(stores: Stores, queue: QueueUnderTest) -> list[str]:
    """The ordered subscriptions that the queue's record names."""
    record = await stores.management.get_queue(queue.ref)
    return list(some(record).metadata.get(ORDERED, ()))
