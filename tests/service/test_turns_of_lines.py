"""Turns at the lines of ordered subscriptions, where the clocks of processes differ."""

import json

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import DelayMode, QueueRef, StoreOptions, Take
from zaqar_lite.domain.subscriptions import SubscriptionDraft
from zaqar_lite.service.delivery.courier import Courier
from zaqar_lite.service.delivery.delivering import Deliveries
from zaqar_lite.service.delivery.log import DeliveryLog
from zaqar_lite.service.delivery.notes import retries_of
from zaqar_lite.service.delivery.ordering import KIND
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.subscriptions.subscribers import Subscribers
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.service.waiting import Waiting
from zaqar_lite.storage.memory import create

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "orders")


async def test_a_turn_that_comes_too_early_by_this_clock_is_taken_again() -> None:
    """It was posted by a process whose clock is ahead; its key must not stop the next one."""
    store_clock, clock, limits = Clock(), Clock(), Limits()
    messages, management = create("memory://", clock=store_clock, options=StoreOptions())
    policies = Policies(management, limits, checked=True)
    queues = Queues(management, messages, policies, limits)
    subscribers = Subscribers(management)
    subscriptions = Subscriptions(
        management,
        queues,
        policies,
        subscribers,
        confirmations=None,
        limits=limits,
        clock=clock,
        refused={},
    )
    deliveries = Deliveries(
        messages,
        management,
        queues,
        subscriptions,
        subscribers=subscribers,
        waiting=Waiting(messages, most=10, most_per_project=10),
        courier=Courier({}, clock, has_ended=lambda _: False),
        log=DeliveryLog(management, clock),
        clock=clock,
        confirmed_only=False,
        disable_after=60,
    )
    made = await subscriptions.create(
        QUEUE, SubscriptionDraft("http://receiver.example/", options={"ordered": True})
    )
    line = (await subscriptions.get(QUEUE, made.id)).name
    held = {"until": clock.now_ms() + 5_000}
    await management.put_record(KIND, QUEUE.project, line, json.dumps(held).encode(), expected=0)
    await deliveries._take_turn(QUEUE, made.id)
    lane = retries_of(QUEUE.project)
    for advanced in (5_000, 5_100):
        store_clock.advance(advanced)
        take = Take(1, None, DelayMode.HONOUR, 60_000, client_id="worker")
        (turn,) = (await messages.claim(lane, take)).messages
        await deliveries._deliver_again(turn)
        await messages.delete(lane, [turn.id], claim_ids=None)
    assert (await messages.stats(lane)).total == 1
