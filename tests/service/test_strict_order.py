"""Ordered subscriptions, where the clocks of processes differ."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from typing import Any, cast

import msgspec
import pytest

from tests.failing import failing
from tests.service.composed import Composed, Failing
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid, Unavailable
from zaqar_lite.domain.metadata import ORDERED
from zaqar_lite.domain.models import (
    ClaimRequest,
    DelayMode,
    ListQuery,
    Message,
    QueueRef,
    StoreOptions,
)
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.domain.subscriptions import Subscription, SubscriptionDraft
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.service.delivery.attempt import Answer, DeliverySender, Notification, Transport
from zaqar_lite.service.delivery.deliveries import KIND, Deliver, Deliveries, Look, StrictOrder
from zaqar_lite.service.delivery.inspection import AttemptLog
from zaqar_lite.service.delivery.internal_targets import QueueTarget
from zaqar_lite.service.delivery.outbox import (
    Delivery,
    Forwarded,
    OutboxMessage,
    decode_delivery,
    deliver_later,
    encode,
    failed_queue,
    ordered_queue,
    outbox_queue,
    retry_queue,
    with_outbox_messages,
)
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.service.subscriptions.subscriber_cache import SubscriberCache
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "orders")


class Process(Composed):
    """What a process has over its stores to deliver in order."""

    def __init__(
        self,
        clock: Clock | None = None,
        stores: tuple[MessageStore, ManagementStore] | None = None,
    ) -> None:
        super().__init__(clock, stores)
        self.subscribers = SubscriberCache(self.management)
        self.subscriptions = Subscriptions(
            self.management,
            self.queues,
            self.policies,
            self.subscribers,
            confirmations=None,
            limits=self.limits,
            clock=self.clock,
            refused={},
        )

    async def subscribe(self, host: str = "receiver.example", *, ordered: bool = True) -> str:
        """Make a subscription; answer its id."""
        draft = SubscriptionDraft(f"http://{host}/", options={"ordered": ordered})
        return (await self.subscriptions.create(QUEUE, draft)).id

    def entry(self, name: str, *ordered: str) -> OutboxMessage:
        """An outbox message of a small message that was posted now."""
        now = self.clock.now_ms()
        body = msgspec.Raw(b"1")
        return OutboxMessage(
            name, QUEUE.project, QUEUE.name, now, now + 60_000, 60, body, ordered=ordered
        )

    async def line_up(self, subscription: str, *names: str) -> QueueRef:
        """Put outbox messages into the queue of an ordered subscription; answer that."""
        own = ordered_queue(QUEUE.project, subscription)
        new = [NewMessage(encode(self.entry(name)), 60_000) for name in names]
        await self.store.post(own, new, client_id="c", version=None)
        return own

    async def note(self, entry: OutboxMessage) -> Message:
        """Put an outbox message into its queue, and read it as a worker does."""
        queue = outbox_queue(entry.project)
        new = [NewMessage(encode(entry), 60_000)]
        await self.store.post(queue, new, client_id="c", version=None)
        (message,) = (await self.store.list_messages(queue, ListQuery(1))).messages
        return message

    def strict_order(self, deliver: Deliver, look: Look) -> StrictOrder:
        """Make what delivers in order, by these functions."""
        return StrictOrder(
            self.store,
            self.management,
            self.subscriptions,
            self.subscribers,
            self.clock,
            deliver=deliver,
            look=look,
        )

    def deliver(self, transports: Mapping[str, Transport]) -> Deliveries:
        """Make what delivers by these transports."""
        return Deliveries(
            self.store,
            self.management,
            self.queues,
            self.subscriptions,
            self.subscribers,
            long_polling=LongPolling(self.store, most=10, most_per_project=10),
            sender=DeliverySender(transports, self.clock, has_ended=lambda _: False),
            log=AttemptLog(self.management, self.clock),
            clock=self.clock,
            confirmed_only=False,
            disable_after=60,
        )


async def look(note: OutboxMessage, *_: object) -> OutboxMessage | None:
    """Find every message as its outbox message says."""
    return note


def still() -> Clock:
    """A clock that stands still unless it is moved."""
    return Clock(wall=lambda: 1_800_000_000.0, monotonic=lambda: 0.0)


async def test_while_a_turn_delivers_no_other_process_takes_one() -> None:
    process = Process()
    clock = process.clock
    made, delivered = await process.subscribe(), list[str]()

    async def end(delivery: Delivery, _: Subscription) -> None:
        delivered.append(delivery.id)

    async def try_meanwhile(delivery: Delivery, subscription: Subscription) -> None:
        clock.advance(10_000)
        later = await second.work(QUEUE, made)
        assert later is not None
        assert later > clock.now_ms()
        await end(delivery, subscription)

    first, second = (process.strict_order(deliver, look) for deliver in (try_meanwhile, end))
    await process.line_up(made, "a", "b")
    assert await first.work(QUEUE, made) is None
    assert delivered == ["a", "b"]


async def test_what_is_not_ordered_any_more_is_noted_by_who_delivers() -> None:
    """Whoever changed that could not write it into the queue's record."""
    process, receiver = Process(), Recorder()
    made = await process.subscribe()
    store = Failing(process.management)
    failing = Process(process.clock, (process.store, cast(ManagementStore, store)))
    store.fails_at = 2
    await failing.subscriptions.update(QUEUE, made, SubscriptionDraft(options={"ordered": False}))
    await process.messages.post(QUEUE, [Draft(b"1")], size=1, client_id="c")
    await process.deliver({"http": receiver})._work_on_ordered(QUEUE, made)
    assert len(receiver.ids) == 1
    record = await process.management.get_queue(QUEUE)
    assert record is not None
    assert ORDERED not in record.metadata


async def test_work_that_the_store_ends_holds_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    made, delivered = await process.subscribe(), list[str]()

    async def deliver(delivery: Delivery, _: Subscription) -> None:
        delivered.append(delivery.id)

    await process.line_up(made, "a")
    order = process.strict_order(deliver, look)
    with monkeypatch.context() as patch:
        patch.setattr(process.store, "delete", failing(Unavailable("It is being moved.")))
        with pytest.raises(Unavailable):
            await order.work(QUEUE, made)
    assert await order.work(QUEUE, made) is None
    assert delivered == ["a", "a"]


async def test_what_failed_is_tried_again_when_it_is_due_and_the_others_wait_for_it() -> None:
    process, tried = Process(still()), list[str]()
    made, due = await process.subscribe(), process.clock.now_ms() + 30_000

    async def deliver(delivery: Delivery, _: Subscription) -> tuple[Delivery, float] | None:
        tried.append(delivery.id)
        return (delivery, 30.0) if len(tried) == 1 else None

    await process.line_up(made, "a", "b")
    for later, again in ((0, due), (29_999, due), (1, None)):
        process.clock.advance(later)
        assert await process.strict_order(deliver, look).work(QUEUE, made) == again
        assert tried == (["a"] if again else ["a", "a", "b"])


async def test_who_has_worked_for_long_lets_another_process_go_on() -> None:
    process, sent = Process(still()), list[str]()
    made = await process.subscribe()

    async def deliver(delivery: Delivery, _: Subscription) -> None:
        sent.append(delivery.id)
        process.clock.advance(20_000)

    await process.line_up(made, "a", "b")
    for so_far in (["a"], ["a", "b"]):
        await process.strict_order(deliver, look).work(QUEUE, made)
        assert sent == so_far


async def test_a_turn_that_comes_too_early_by_this_clock_is_taken_again() -> None:
    """It was posted by a process whose clock is ahead; its key must not stop the next one."""
    store_clock, clock = Clock(), Clock()
    messages, management = create("memory://", clock=store_clock, options=StoreOptions())
    process = Process(clock, (messages, management))
    deliveries = process.deliver({})
    made = await process.subscribe()
    name = (await process.subscriptions.get(QUEUE, made)).name
    held = {"until": clock.now_ms() + 5_000}  # by an earlier version
    await management.put_record(KIND, QUEUE.project, name, json.dumps(held).encode(), expected=0)
    await deliveries._work_on_ordered(QUEUE, made)
    lane = retry_queue(QUEUE.project)
    for advanced in (5_000, 5_100):
        store_clock.advance(advanced)
        request = ClaimRequest(1, None, DelayMode.HONOUR, 60_000, client_id="worker")
        (turn,) = (await messages.claim(lane, request)).messages
        await deliveries._deliver_again(turn)
        await messages.delete(lane, [turn.id], claim_ids=None)
    assert (await messages.stats(lane)).total == 1


async def test_delayed_messages_keep_their_order_though_clocks_differ() -> None:
    """Some were stored at a later instant, by the store's clock, than their outbox messages say."""
    store_clock, clock = still(), still()
    process = Process(clock, create("memory://", clock=store_clock, options=StoreOptions()))
    made, receiver = await process.subscribe(), Recorder()
    await process.queues.change(QUEUE, lambda old: {**old, "_default_message_delay": 2})
    posted = []
    for ahead in (5, 0, 5):
        clock.advance(-ahead)
        draft = Draft(b"1", ttl=60, delay=2)
        receipt = await process.messages.post(QUEUE, [draft], size=1, client_id="c")
        posted += [f"msg_{one.id}" for one in receipt.posted]
        clock.advance(ahead)
    for one in (store_clock, clock):
        one.advance(1_990)
    await process.deliver({"http": receiver})._work_on_ordered(QUEUE, made)
    assert receiver.ids == posted
    assert {json.loads(one)["ttl"] for one in receiver.bodies} == {60}


async def test_a_message_that_was_consumed_before_a_late_look_is_delivered() -> None:
    """It was posted by a process whose clock is ahead of this one's."""
    store_clock, clock = still(), still()
    process = Process(clock, create("memory://", clock=store_clock, options=StoreOptions()))
    receiver = Recorder()
    await process.subscribe(ordered=False)
    await process.queues.change(QUEUE, lambda old: {**old, "_default_message_delay": 2})
    for seconds, count in ((1, 0), (3, 1)):
        clock.advance(5_000)
        draft = Draft(b"1", ttl=60, delay=2)
        receipt = await process.messages.post(QUEUE, [draft], size=1, client_id="c")
        clock.advance(-5_000)
        for one in (store_clock, clock):
            one.advance(seconds * 1_000 + 500)
        ids = [one.id for one in receipt.posted]
        await process.store.delete(QUEUE, ids, claim_ids=())
        claim = ClaimRequest(1, delay_mode=DelayMode.HONOUR, ttl_ms=60_000, client_id="c")
        (message,) = (await process.store.claim(outbox_queue("p"), claim)).messages
        await process.deliver({"http": receiver})._deliver_new(message)
        assert len(receiver.ids) == count  # one that was deleted before it was due is not


class Recorder(Transport):
    """A transport that notes what it was sent."""

    def __init__(self, status: int = 204) -> None:
        self.sent: list[str] = []
        self.ids: list[str] = []
        self.bodies: list[bytes] = []
        self._status = status

    async def send(self, notification: Notification) -> Answer:
        self.sent.append(notification.subscriber)
        self.ids.append(notification.headers.get("webhook-id", ""))
        self.bodies.append(notification.body)
        return Answer(status=self._status)

    async def most_at_once(self, delivering: Coroutine[Any, Any, None]) -> int:
        """Deliver, and answer how many were sent between two rounds of the event loop at most."""
        task = asyncio.create_task(delivering)
        most = sent = 0
        while not task.done():
            await asyncio.sleep(0)
            most, sent = max(most, len(self.sent) - sent), len(self.sent)
        await task
        return most


async def test_a_turn_that_fails_repeats_no_delivery_to_others() -> None:
    clock = still()
    process, recorder = Process(clock), Recorder()
    messages = process.store
    deliveries = process.deliver({"http": recorder})
    ordered = await process.subscribe()
    await process.subscribe("other.example", ordered=False)
    own = ordered_queue(QUEUE.project, ordered)
    await messages.post(own, [NewMessage(b"no note", 60_000)], client_id="c", version=None)
    now = clock.now_ms()
    message = await process.note(process.entry("a", ordered))
    for _ in range(2):  # they share one later turn
        await deliveries._deliver_new(message)
    assert recorder.sent == ["http://other.example/"] * 2
    later = await messages.list_messages(
        retry_queue(QUEUE.project), ListQuery(10, include_delayed=True)
    )
    wake_ups = [decode_delivery(one.body) for one in later.messages]
    assert [(one.subscription, one.until - now) for one in wake_ups] == [(ordered, 10_000)]


async def test_what_no_queue_takes_is_kept_to_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    messages = process.store
    deliveries = process.deliver({})
    draft = SubscriptionDraft("http://r.example/", options={"dead_letter_queue": "letters"})
    made = (await process.subscriptions.create(QUEUE, draft)).id
    subscription = await process.subscriptions.get(QUEUE, made)
    refuse = failing(Invalid("No pool that fits can do it."))
    monkeypatch.setattr(process.queues, "ensure", refuse)
    delivery = Delivery("p", "orders", made, "a", 0, msgspec.Raw(b"1"))
    await deliveries.bury(delivery, subscription, "the receiver answered 404")
    (kept,) = (await messages.list_messages(failed_queue("p", made), ListQuery(10))).messages
    assert "did not take it: No pool" in decode_delivery(kept.body).reason


@pytest.mark.parametrize("down", [0, 1_800_000], ids=["served", "no server"])
async def test_what_expires_before_its_next_try_is_kept_to_be_listed(down: int) -> None:
    """Its endpoint may be failing for longer than a message lives, and servers may be down."""
    process = Process()
    deliveries = process.deliver({})
    made = await process.subscribe(ordered=False)
    until = process.clock.now_ms() + 60_000
    delivery = Delivery("p", "orders", made, "a", until, msgspec.Raw(b"1"))
    await deliver_later(process.store, [(delivery, 600.0)], process.clock.now_ms())
    process.clock.advance(60_000 + down)
    claim = ClaimRequest(1, delay_mode=DelayMode.HONOUR, ttl_ms=60_000, client_id="c")
    (message,) = (await process.store.claim(retry_queue("p"), claim)).messages
    await deliveries._deliver_again(message)
    failed = ListQuery(10)
    (kept,) = (await process.store.list_messages(failed_queue("p", made), failed)).messages
    assert decode_delivery(kept.body).reason == "the message's ttl ended"


@pytest.mark.parametrize(("count", "is_allowed"), [(1_000, True), (1_001, False)])
async def test_a_post_makes_so_many_deliveries_in_order(count: int, is_allowed: bool) -> None:
    process = Process()
    for number in range(10):
        await process.subscribe(f"r{number}.example")
    policy = await process.policies.get(QUEUE)
    new, words = [NewMessage(b"1", 60_000)] * count, "1001 messages would make 10010 deliveries in"
    with nullcontext() if is_allowed else pytest.raises(Invalid, match=words):
        noted = await with_outbox_messages(QUEUE, new, process.policies, policy, 0)
        assert sum(len(message.outbox) for message in noted) == 11 * count


@pytest.mark.parametrize(("copies", "is_allowed"), [(12, True), (13, False)])
async def test_a_post_makes_so_many_bytes_of_its_copies(copies: int, is_allowed: bool) -> None:
    process = Process()
    queues = [QueueRef("p", f"filtered-{number}") for number in range(copies)]
    for queue in queues:
        for number in range(10):
            draft = SubscriptionDraft(f"http://r{number}.example", options={"ordered": True})
            await process.subscriptions.create(queue, draft)
    copied = tuple(Copy(one, 60_000, 0, 100) for one in queues)
    new = NewMessage(b"1" * 250_000, 60_000, copies=copied)
    policy = await process.policies.get(QUEUE)
    with nullcontext() if is_allowed else pytest.raises(Invalid, match="35750000 bytes"):
        (noted,) = await with_outbox_messages(QUEUE, [new], process.policies, policy, 0)
        assert len(noted.outbox) == 11 * copies


@pytest.mark.parametrize("ending", ["it answered 410", "it was deleted elsewhere"])
async def test_what_ends_is_sent_nothing_more(ending: str) -> None:
    """One piece of work goes through many messages: each is sent by the subscription as it is."""
    process = Process()
    made = await process.subscribe()
    elsewhere = Process(process.clock, (process.store, process.management))

    class Ending(Recorder):
        async def send(self, notification: Notification) -> Answer:
            if "deleted" in ending:
                await elsewhere.subscriptions.delete(QUEUE, made)
            return await super().send(notification)

    receiver = Ending(410 if "410" in ending else 204)
    own = await process.line_up(made, "a", "b", "c")
    await process.deliver({"http": receiver})._work_on_ordered(QUEUE, made)
    assert len(receiver.sent) == 1
    assert (await process.store.stats(own)).total == 0
    assert not await process.management.list_records(KIND, "p", limit=1)


async def test_a_list_from_before_a_subscription_was_made_ends_nothing() -> None:
    """What was posted to it since then is there for it, though this process read others before."""
    process = Process()
    await process.subscribe("other.example", ordered=False)
    assert len(await process.subscribers.of(QUEUE, 0)) == 1
    elsewhere = Process(process.clock, (process.store, process.management))
    made = await elsewhere.subscribe()
    await elsewhere.messages.post(QUEUE, [Draft(b"1")], size=1, client_id="c")
    receiver = Recorder()
    await process.deliver({"http": receiver})._work_on_ordered(QUEUE, made)
    assert receiver.sent == ["http://receiver.example/"]
    record = await process.management.get_queue(QUEUE)
    assert record is not None
    assert record.metadata[ORDERED] == [made]


@pytest.mark.parametrize("status", [204, 500])
async def test_a_large_message_is_sent_to_many_in_steps(status: int) -> None:
    process, recorder = Process(), Recorder(status)
    messages, clock = process.store, process.clock
    deliveries = process.deliver({"http": recorder})
    for number in range(20):
        await process.subscribe(f"r{number}.example", ordered=False)
    now = clock.now_ms()
    body = msgspec.Raw(b'"%s"' % (b"x" * 200_000))
    note = OutboxMessage("a" * 32, "p", "orders", now, now + 600_000, 600, body)
    message = await process.note(note)
    most_at_once = await recorder.most_at_once(deliveries._deliver_new(message))
    assert (len(recorder.sent), most_at_once) == (20, 1)
    again = await messages.stats(retry_queue(QUEUE.project))
    assert again.total == (20 if status == 500 else 0)


async def test_a_topics_message_goes_to_its_queues_in_steps() -> None:
    process = Process()
    clock = process.clock
    target = QueueTarget(process.messages, clock)

    class Posting(Recorder):
        async def send(self, notification: Notification) -> Answer:
            answer = await target.send(notification)
            await super().send(notification)
            return answer

    recorder = Posting()
    deliveries, topic = process.deliver({"queue": recorder}), topic_ref("p", "t")
    for number in range(50):
        await process.subscriptions.create(topic, SubscriptionDraft(f"queue:q{number}"))
    now = clock.now_ms()
    note = OutboxMessage(
        "", "p", topic.name, now, now + 60_000, 60, msgspec.Raw(b"1"), sent=Forwarded("c")
    )
    message = await process.note(note)
    most_at_once = await recorder.most_at_once(deliveries._deliver_new(message))
    assert (len(recorder.sent), most_at_once) == (50, 1)
