"""Subscriptions on every management store: they are records, and mark their queue."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain.errors import Conflict, LimitReached, NotFound, QuotaReached
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.quotas import UNLIMITED, Quota
from zaqar_lite.domain.subscriptions import SubscriptionDraft
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.domain.yielding import Turns
from zaqar_lite.service.delivery.outbox import decode_outbox_message, outbox_queue
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscribed, Subscriptions
from zaqar_lite.service.topics import Topics

pytestmark = pytest.mark.anyio
LIMITS = Limits()


class Rules:
    """The services over one server's stores."""

    def __init__(
        self, stores: Stores, quota: Quota = UNLIMITED, *, most_per_queue: int = 200
    ) -> None:
        self.stores = stores
        self.policies = Policies(stores.management, LIMITS, checked=True)
        self.queues = Queues(stores.management, stores.messages, self.policies, LIMITS)
        self.subscribers = SubscriberCache(stores.management)
        self.subscriptions = Subscriptions(
            stores.management,
            self.queues,
            self.policies,
            self.subscribers,
            confirmations=None,
            limits=replace(LIMITS, max_subscriptions_per_queue=most_per_queue),
            clock=stores.clock,
            refused={},
            quota_of=lambda _: quota,
        )


@pytest.fixture
def rules(stores: Stores) -> Rules:
    return Rules(stores)


def draft(number: int = 0, ttl: int | None = None) -> SubscriptionDraft:
    return SubscriptionDraft(f"http://receiver.example/{number}", ttl, {"n": number})


async def test_lists_by_cursor_in_the_order_they_were_made(
    rules: Rules, queue: QueueUnderTest
) -> None:
    near = QueueRef(queue.ref.project, f"{queue.ref.name}-2")
    made = [(await rules.subscriptions.create(queue.ref, draft(n))).id for n in range(7)]
    await rules.subscriptions.create(near, draft())
    found: list[str] = []
    while page := await rules.subscriptions.page(
        queue.ref, marker=found[-1] if found else None, limit=3
    ):
        found += [subscription.id for subscription in page]
    assert found == made
    assert [one.options for one in await rules.subscribers.of(queue.ref)] == [
        {"n": n} for n in range(7)
    ]


async def test_an_expired_one_is_gone_at_once(
    rules: Rules, queue: QueueUnderTest, stores: Stores
) -> None:
    made = await rules.subscriptions.create(queue.ref, draft(ttl=60))
    other = await rules.subscriptions.create(queue.ref, draft(1, ttl=600))
    stores.clock.advance(61_000)
    with pytest.raises(NotFound):
        await rules.subscriptions.get(queue.ref, made.id)
    page = await rules.subscriptions.page(queue.ref, marker=None, limit=10)
    assert [subscription.id for subscription in page] == [other.id]
    again = await rules.subscriptions.create(queue.ref, draft(ttl=60))
    assert (again.id != made.id, again.secret is not None) == (True, True)


async def test_of_racing_subscribers_one_makes_it(rules: Rules, queue: QueueUnderTest) -> None:
    made = await asyncio.gather(*(rules.subscriptions.create(queue.ref, draft()) for _ in range(5)))
    page = await rules.subscriptions.page(queue.ref, marker=None, limit=10)
    assert [subscription.id for subscription in page] == [*{one.id for one in made}]
    await rules.subscriptions.confirm(queue.ref, page[0].id, confirmed=True, token=None)
    with pytest.raises(Conflict):
        await rules.subscriptions.create(queue.ref, draft())


async def race(
    servers: Sequence[Rules], queue: QueueUnderTest, numbers: range, refusal: type[Exception]
) -> list[str]:
    """Subscribe all at once, by all servers in turn; answer those that were let in."""
    outcomes = await asyncio.gather(
        *(servers[number % 2].subscriptions.create(queue.ref, draft(number)) for number in numbers),
        return_exceptions=True,
    )
    made = [one.id for one in outcomes if isinstance(one, Subscribed)]
    assert len(made) + sum(type(one) is refusal for one in outcomes) == len(numbers)
    return made


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
    servers = [Rules(one, quota, most_per_queue=most_per_queue) for one in peers]
    made = await race(servers, queue, range(6), refusal)
    assert len(made) == 3
    for one in made[:2]:
        await servers[0].subscriptions.delete(queue.ref, one)
    # Those that fit are not refused.
    assert len(await race(servers, queue, range(6, 8), refusal)) == 2
    assert await servers[1].subscriptions.count(queue.ref.project, 10) == 3


async def test_a_full_queue_takes_no_room_from_another(
    stores: Stores, queue: QueueUnderTest
) -> None:
    rules = Rules(stores, most_per_queue=1)
    near = QueueRef(queue.ref.project, f"{queue.ref.name}-2")
    for one in (near, queue.ref):
        await rules.subscriptions.create(one, draft())
        with pytest.raises(LimitReached, match="The queue has 1 subscriptions"):
            await rules.subscriptions.create(one, draft(1))


async def test_who_races_for_the_last_room_with_itself_is_let_in(
    stores: Stores, queue: QueueUnderTest
) -> None:
    servers = [Rules(one, Quota(subscriptions=1)) for one in await stores.peers(2)]
    made = await asyncio.gather(
        *(servers[number % 2].subscriptions.create(queue.ref, draft()) for number in range(4))
    )
    assert len({one.id for one in made}) == 1


async def test_other_servers_learn_of_its_end_from_the_queues_record(
    rules: Rules, queue: QueueUnderTest, stores: Stores
) -> None:
    other = Rules((await stores.peers(2))[1])
    made = await rules.subscriptions.create(queue.ref, draft())
    for count in (1, 0):
        record = await other.stores.management.get_queue(queue.ref)
        assert record is not None
        assert len(await other.subscribers.of(queue.ref, record.version)) == count
        await rules.subscriptions.delete(queue.ref, made.id)


async def test_other_servers_learn_of_a_topics_subscriptions_from_its_messages(
    rules: Rules, queue: QueueUnderTest, stores: Stores
) -> None:
    topic = topic_ref(queue.ref.project, queue.ref.name)
    other = Rules((await stores.peers(2))[1])
    topics = Topics(
        stores.management, stores.messages, limits=LIMITS, clock=stores.clock, turns=Turns()
    )
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
            made = await rules.subscriptions.create(topic, draft())
        else:
            await rules.subscriptions.delete(topic, made.id)
    assert seen == [0, 1, 0]


async def test_marks_its_queue_for_other_servers(
    rules: Rules, queue: QueueUnderTest, stores: Stores
) -> None:
    other = Rules((await stores.peers(2))[1])
    await other.queues.create(queue.ref, {"a": 1})
    assert not (await other.policies.get(queue.ref)).subscribed
    made = await rules.subscriptions.create(queue.ref, draft())
    other.policies.forget(queue.ref)
    assert (await other.policies.get(queue.ref)).subscribed
    # It outlives its queue, and marks the next one of that name.
    await other.queues.delete(queue.ref)
    await other.queues.ensure(queue.ref)
    assert (await other.policies.get(queue.ref)).subscribed
    await rules.subscriptions.flags.clear(queue.ref)
    assert (await rules.policies.get(queue.ref)).subscribed
    await rules.subscriptions.delete(queue.ref, made.id)
    await rules.subscriptions.flags.clear(queue.ref)
    rules.policies.forget(queue.ref)
    assert not (await rules.policies.get(queue.ref)).subscribed
    assert await rules.queues.metadata(queue.ref) == await rules.queues.metadata(
        QueueRef(queue.ref.project, "none")
    )


async def test_disabling_tells_whether_it_was_not_so_before(
    rules: Rules, queue: QueueUnderTest
) -> None:
    made_id = (await rules.subscriptions.create(queue.ref, draft())).id
    made = await rules.subscriptions.get(queue.ref, made_id)
    assert await rules.subscriptions.disable(made, "the receiver answered 410")
    assert not await rules.subscriptions.disable(made, "again")
    found = await rules.subscriptions.get(queue.ref, made.id)
    assert found.disabled is not None
    assert found.disabled.reason == "the receiver answered 410"
    await rules.subscriptions.delete(queue.ref, made.id)
    assert not await rules.subscriptions.disable(made, "gone")
