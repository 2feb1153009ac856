"""Turns at the lines of ordered subscriptions, where the clocks of processes differ."""

import json

import msgspec
import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.subscriptions import Subscription, SubscriptionDraft
from zaqar_lite.service.delivery.courier import Courier
from zaqar_lite.service.delivery.delivering import Deliveries
from zaqar_lite.service.delivery.log import DeliveryLog
from zaqar_lite.service.delivery.notes import Delivery, Note, encode, line_of, retries_of
from zaqar_lite.service.delivery.ordering import KIND, Ordering
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.subscriptions.subscribers import Subscribers
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.waiting import Waiting
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.memory import create

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "orders")


class Process:
    """What a process has over its stores to take turns."""

    def __init__(self, messages: MessageStore, management: ManagementStore, clock: Clock) -> None:
        limits = Limits()
        policies = Policies(management, limits, checked=True)
        self.queues = Queues(management, messages, policies, limits)
        self.subscribers = Subscribers(management)
        self.subscriptions = Subscriptions(
            management,
            self.queues,
            policies,
            self.subscribers,
            confirmations=None,
            limits=limits,
            clock=clock,
            refused={},
        )

    async def subscribe(self) -> str:
        """Make an ordered subscription; answer its id."""
        draft = SubscriptionDraft("http://receiver.example/", options={"ordered": True})
        return (await self.subscriptions.create(QUEUE, draft)).id


async def test_while_a_turn_delivers_no_other_process_takes_one() -> None:
    clock = Clock()
    messages, management = create("memory://", clock=clock, options=StoreOptions())
    process = Process(messages, management, clock)
    made, now, delivered = await process.subscribe(), clock.now_ms(), []

    async def look(note: Note, _: QueueRef) -> Note | None:
        return note

    async def end(delivery: Delivery, _: Subscription) -> float | None:
        delivered.append(delivery.id)
        return None

    async def try_meanwhile(delivery: Delivery, subscription: Subscription) -> float | None:
        clock.advance(10_000)
        later = await second.take_turn(QUEUE, made)
        assert later is not None
        assert later > clock.now_ms()
        return await end(delivery, subscription)

    first, second = (
        Ordering(messages, management, process.subscriptions, clock, deliver=deliver, look=look)
        for deliver in (try_meanwhile, end)
    )
    notes = [
        Note(name, QUEUE.project, QUEUE.name, now, now + 60_000, 60, msgspec.Raw(b"1"))
        for name in ("a", "b")
    ]
    line = line_of(QUEUE.project, made)
    new = [NewMessage(encode(note), 60_000) for note in notes]
    await messages.post(line, new, client_id="c", version=None)
    assert await first.take_turn(QUEUE, made) is None
    assert delivered == ["a", "b"]


async def test_a_turn_that_comes_too_early_by_this_clock_is_taken_again() -> None:
    """It was posted by a process whose clock is ahead; its key must not stop the next one."""
    store_clock, clock = Clock(), Clock()
    messages, management = create("memory://", clock=store_clock, options=StoreOptions())
    process = Process(messages, management, clock)
    deliveries = Deliveries(
        messages,
        management,
        process.queues,
        process.subscriptions,
        subscribers=process.subscribers,
        waiting=Waiting(messages, most=10, most_per_project=10),
        courier=Courier({}, clock, has_ended=lambda _: False),
        log=DeliveryLog(management, clock),
        clock=clock,
        confirmed_only=False,
        disable_after=60,
    )
    made = await process.subscribe()
    line = (await process.subscriptions.get(QUEUE, made)).name
    held = {"until": clock.now_ms() + 5_000}
    await management.put_record(KIND, QUEUE.project, line, json.dumps(held).encode(), expected=0)
    await deliveries._take_turn(QUEUE, made)
    lane = retries_of(QUEUE.project)
    for advanced in (5_000, 5_100):
        store_clock.advance(advanced)
        take = Take(1, None, DelayMode.HONOUR, 60_000, client_id="worker")
        (turn,) = (await messages.claim(lane, take)).messages
        await deliveries._deliver_again(turn)
        await messages.delete(lane, [turn.id], claim_ids=None)
    assert (await messages.stats(lane)).total == 1
