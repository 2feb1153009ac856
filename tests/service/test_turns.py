"""Long work is done in steps: requests of others run between them, whatever the work is."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest
from msgspec import Raw

from tests.service.composed import Composed
from tests.waiting import rounds_beside
from zaqar_lite.api import documents
from zaqar_lite.api.request import request_of
from zaqar_lite.api.v2.messages import posted_response
from zaqar_lite.domain import yielding
from zaqar_lite.domain.models import Claimed, QueueRef, Stats
from zaqar_lite.domain.posts import NewMessage, Posted
from zaqar_lite.domain.quotas import UNLIMITED
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.domain.topics import QUEUE_SCHEME, topic_ref
from zaqar_lite.domain.yielding import _ROUNDS, STEP, in_steps
from zaqar_lite.service import event_streams, records
from zaqar_lite.service.delivery.attempt import Answer, DeliverySender, Notification, Transport
from zaqar_lite.service.delivery.internal_targets import QueueTarget
from zaqar_lite.service.delivery.outbox import Delivery, Forwarded, with_outbox_messages
from zaqar_lite.service.encryption import EncryptionKeys
from zaqar_lite.service.event_streams import PAGE, Cursor, EventStreams, Stream
from zaqar_lite.service.identity.authentication import Revalidation
from zaqar_lite.service.janitor import Janitor
from zaqar_lite.service.jobs import jobs
from zaqar_lite.service.jobs.bulk import Choice, Job, JobAct, Order
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.metrics.queue_depths import RecentRates
from zaqar_lite.service.policy import Policy
from zaqar_lite.service.pooling import placement
from zaqar_lite.service.pooling.placement import Place, Placements
from zaqar_lite.service.pooling.pools import PoolRegistry, StoreKind
from zaqar_lite.service.post_validation import Draft, PostValidation
from zaqar_lite.service.quotas import quotas
from zaqar_lite.service.topics import Topic, Topics

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "q")
Work = Callable[[Composed], Awaitable[tuple[Awaitable[object], int]]]
"""Prepares long work, and tells how many steps it has at least."""


def _topics(one: Composed) -> Topics:
    return Topics(one.management, one.store, limits=one.limits, clock=one.clock)


def _drafts(count: int) -> list[Draft]:
    return [Draft(b"1", 300, None, str(number)) for number in range(count)]


async def read_a_post(_: Composed) -> tuple[Awaitable[object], int]:
    content = json.dumps({"messages": [{"body": "x" * 20}] * 1_600}).encode()
    request = request_of("POST", b"/", b"", ())
    request.document, request.size, request.most = content, len(content), len(content)
    return documents.read_messages(request), 1_600 // STEP - 1


async def answer_a_post(_: Composed) -> tuple[Awaitable[object], int]:
    return posted_response("/", [Posted("id", False)] * 4_000), 4 * _ROUNDS


async def post_to_a_topic(one: Composed) -> tuple[Awaitable[object], int]:
    """To check and to prepare a part is a turn each, before which the loop goes round."""
    topic = Topic("t", {}, 1)
    posted = _topics(one).post(QUEUE, _drafts(1_000), client_id="c", batch_key=None, admitted=topic)
    return posted, 4 * (1_000 // STEP)


async def search_topics(one: Composed) -> tuple[Awaitable[object], int]:
    topics = _topics(one)
    for number in range(40):
        await topics.create(topic_ref("p", f"t{number}"), {"n": number})
    found = topics.list_topics("p", marker=None, limit=10, name_contains=None, metadata={"n": 39})
    return found, 40


async def page_of_records(one: Composed) -> tuple[Awaitable[object], int]:
    for number in range(40):
        await one.management.put_record("thing", "p", f"{number:02}", b"{}", expected=0)
    kind = records.Kind(
        one.management, "thing", "Thing", encode=str.encode, reads=lambda record: record.name
    )
    return kind.page("p", None, None), 40


async def route_by_filters(one: Composed) -> tuple[Awaitable[object], int]:
    """A turn is some rounds: one for each filter, for each try of one, and for each message."""
    for number in range(10):
        queue = QueueRef("p", f"slow-{number}")
        await one.queues.create(queue, {"_filter": f"text LIKE '%{number}'"})
    slow = [Draft(b"1", headers={"text": "x" * 1_000})] * 4
    return one.messages.post(QUEUE, slow, size=1, client_id="c"), _ROUNDS * (10 + 40 + 4)


async def match_letters(one: Composed) -> tuple[Awaitable[object], int]:
    headers = {f"h{number}": "ab" * 40 for number in range(8)}
    await one.store.post(
        QUEUE, [NewMessage(b"1", 600_000, headers=headers)] * 20, client_id="c", version=None
    )
    newest = (await one.store.stats(QUEUE)).newest
    assert newest is not None
    order = Order(filter=Choice(where="h1 LIKE '%c'"), to="back", dry_run=True)
    job = Job("j", "q", JobAct.REDRIVE, order, one.clock.now_ms(), until=newest.position)
    made = one.jobs()
    held = records.Held(made._running, "p", jobs.running_name(QUEUE, job.act), job, 0)
    run = jobs._Run(made, records.Holder(one.clock), held, lambda: True)
    return run._look(0, newest.position, 500), 20


async def count_queues(one: Composed) -> tuple[Awaitable[object], int]:
    kept = RecentRates(one.store, lambda: 0.0)
    for number in range(100):
        kept.look(QueueRef("p", f"q{number}"), Stats())
    return kept.sample(), 100


async def load_quotas(one: Composed) -> tuple[Awaitable[object], int]:
    for number in range(200):
        value = json.dumps({"queues": number}).encode()
        await one.management.put_record("quota", f"p{number}", "quota", value, expected=None)
    return quotas.Quotas(one.management, UNLIMITED, shared=True).load(), 20


async def _places(one: Composed) -> Placements:
    registry = PoolRegistry(one.management, lambda _: StoreKind("memory"))
    placements = Placements(one.management, registry, one.clock)
    for number in range(200):
        queue = QueueRef("p", f"q{number}")
        await one.management.create_queue(queue, {}, max_queues=1_000)
        await placements.write(queue, Place("one"))
    return placements


async def ask_what_a_pool_holds(one: Composed) -> tuple[Awaitable[object], int]:
    return (await _places(one)).holds("another"), 20


async def look_for_a_projects_queues(one: Composed) -> tuple[Awaitable[object], int]:
    return (await _places(one)).decide(QueueRef("p", "q0"), {"_filter": "a = 'b'"}), 20


def _post_validation(one: Composed) -> PostValidation:
    return PostValidation(one.limits, one.clock)


async def check_a_post(one: Composed) -> tuple[Awaitable[object], int]:
    return _post_validation(one).check(_drafts(1_000)), _ROUNDS * (1_000 // STEP)


async def prepare_a_post(one: Composed) -> tuple[Awaitable[object], int]:
    """The store goes on in a turn of its own."""
    policy = await one.policies.get(QUEUE)
    return _post_validation(one).resolve(QUEUE, _drafts(200), policy), _ROUNDS * (200 + 1)


async def copy_to_many_queues(one: Composed) -> tuple[Awaitable[object], int]:
    queues = [QueueRef("p", f"copies-{number}") for number in range(11)]
    for queue in queues:
        await one.queues.create(queue, {"_filter": "a = 'b'"})
    filtered, policy = await one.management.filtered_queues("p"), await one.policies.get(QUEUE)
    new = [NewMessage(b"1", 600_000, headers={"a": "b"})] * 10
    turns = len(queues) + len(new) * (len(queues) + 1) + 1
    return one.messages._routed(QUEUE, new, policy, filtered), _ROUNDS * turns


async def tell_subscribers(one: Composed) -> tuple[Awaitable[object], int]:
    policy = replace(await one.policies.get(QUEUE), subscribed=True)
    new = [NewMessage(b"1", 600_000)] * 1_000
    told = with_outbox_messages(QUEUE, new, one.policies, policy, one.clock.now_ms())
    return told, _ROUNDS * (1 + 1_000 // STEP)


async def encrypt_a_post(one: Composed) -> tuple[Awaitable[object], int]:
    keys = EncryptionKeys(one.management, {"first": b"1" * 32}, one.clock)
    new = [NewMessage(b"1", 600_000)] * 1_000
    await keys.seal(QUEUE, new[:1])
    return keys.seal(QUEUE, new), _ROUNDS * (1 + 1_000 // STEP)


async def claim_where_steps_move_dead_letters(one: Composed) -> tuple[Awaitable[object], int]:
    answers = iter([*[Claimed(None, more=True)] * 20, Claimed(None)])

    async def step(_: Policy) -> Claimed:
        return next(answers)

    return one.policies.take(QUEUE, step), _ROUNDS * 20


async def _stream(one: Composed, messages: int, cursor: str | None) -> Stream:
    await one.queues.create(QUEUE, {"_default_message_delay": 600})
    await one.store.post(
        QUEUE, [NewMessage(b"1", 900_000, 600_000)] * messages, client_id="c", version=None
    )
    waiting = LongPolling(one.store, most=10, most_per_project=10)
    return await EventStreams(one.store, one.policies, waiting).open(
        QUEUE,
        marker=cursor,
        from_now=cursor is None,
        exclude_client_id=None,
        include_delayed=False,
        gone=asyncio.Future(),
    )


async def stream_past_delayed_messages(one: Composed) -> tuple[Awaitable[object], int]:
    return (await _stream(one, PAGE, str(Cursor()))).look(), _ROUNDS


async def test_a_stream_rests_by_what_it_will_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the messages in front, of which none is pending."""
    one, instants = Composed(), iter(range(1_000))
    await one.queues.create(QUEUE, {"_honour_delays": True})
    await one.store.post(QUEUE, [NewMessage(b"1", 900_000)] * 200, client_id="c", version=None)
    stream = await _stream(one, 1, None)
    monkeypatch.setattr(event_streams, "_now", lambda: next(instants))
    assert await stream.look() is None
    assert stream._not_before - next(instants) <= event_streams._SPARED


async def look_at_what_is_pending(one: Composed) -> tuple[Awaitable[object], int]:
    return (await _stream(one, 10 * PAGE, None)).look(), _ROUNDS * 10


async def deliver_a_large_message(one: Composed) -> tuple[Awaitable[object], int]:
    class Quick(Transport):
        async def send(self, notification: Notification) -> Answer:
            return Answer(status=204)

    sender = DeliverySender({"http": Quick()}, one.clock, has_ended=lambda _: False)
    delivery = Delivery("p", "q", "s", "m", 0, Raw(b'"%s"' % (b"x" * 16_384)))
    subscription = Subscription("s", QUEUE, "http://example.org/", 60, {}, 0, 0)
    return sender.attempt(delivery, subscription, None, is_fresh=True), _ROUNDS


async def deliver_to_a_queue(one: Composed) -> tuple[Awaitable[object], int]:
    """Beside the rounds of a post."""
    post = one.messages.post(QUEUE, _drafts(1), size=1, client_id="c")
    alone, _ = await rounds_beside(post)
    body = msgspec.json.encode(Forwarded("c", body=Raw(b"1")))
    notification = Notification(f"{QUEUE_SCHEME}q", {}, body, {}, "p", "n")
    return QueueTarget(one.messages, one.clock).send(notification), alone + _ROUNDS


async def sweep(one: Composed) -> tuple[Awaitable[object], int]:
    """Beside the rounds of the store."""
    janitor = Janitor(one.store, one.management, one.queues, one.policies, interval=600)
    found_nothing, _ = await rounds_beside(one.store.sweep(1, one.policies.retries_of))
    return janitor.step(), found_nothing + _ROUNDS


async def ask_what_may_go_on(_: Composed) -> tuple[Awaitable[object], int]:
    async def may() -> bool:
        return True

    held = Revalidation()
    for _number in range(40):
        held.hold(may, lambda: None)
    return held._look(), _ROUNDS * 40


@pytest.mark.parametrize(
    "prepare",
    [
        *(read_a_post, answer_a_post, post_to_a_topic, search_topics, page_of_records),
        *(route_by_filters, match_letters, count_queues, load_quotas, ask_what_a_pool_holds),
        *(look_for_a_projects_queues, check_a_post, prepare_a_post, copy_to_many_queues),
        *(tell_subscribers, encrypt_a_post, claim_where_steps_move_dead_letters, sweep),
        *(stream_past_delayed_messages, look_at_what_is_pending, ask_what_may_go_on),
        *(deliver_a_large_message, deliver_to_a_queue),
    ],
)
async def test_others_run_between_the_steps(prepare: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time ends a step, each part is one here; pages are small."""
    monkeypatch.setattr(yielding, "_SLICE", 0.0)
    monkeypatch.setattr(placement, "_PAGE", 10)
    for one in (placement, quotas, records):
        monkeypatch.setattr(one, "_READ_AT_ONCE", 10)
    work, steps = await prepare(Composed())
    rounds, _ = await rounds_beside(work)
    assert rounds >= steps


@pytest.mark.parametrize(("count", "turns"), [(STEP, 0), (STEP + 1, 3), (10 * STEP, 11)])
async def test_what_is_done_in_steps_waits_for_a_turn_before_each_and_a_few_for_none(
    count: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yielding, "_SLICE", 0.0)
    seen: list[int] = []

    async def work() -> None:
        async for _, items in in_steps(range(count)):
            seen.extend(items)

    rounds, _ = await rounds_beside(work())
    assert (seen, rounds) == (list(range(count)), _ROUNDS * turns + 1)


async def test_a_small_post_to_a_topic_waits_for_no_turn() -> None:
    posted = _topics(Composed()).post(
        QUEUE, _drafts(1), client_id="c", batch_key=None, admitted=Topic("t", {}, 1)
    )
    rounds, _ = await rounds_beside(posted)
    assert rounds <= 8
