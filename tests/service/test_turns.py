"""Long work is done in steps: requests of others run between them, whatever the work is."""

import json
from collections.abc import Awaitable, Callable

import pytest

from tests.service.composed import Composed
from tests.waiting import rounds_beside
from zaqar_lite.api import documents
from zaqar_lite.api.request import request_of
from zaqar_lite.api.v2.messages import posted_response
from zaqar_lite.domain import yielding
from zaqar_lite.domain.models import QueueRef, Stats
from zaqar_lite.domain.posts import NewMessage, Posted
from zaqar_lite.domain.quotas import UNLIMITED
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.domain.yielding import _ROUNDS, STEP, in_steps
from zaqar_lite.service import records
from zaqar_lite.service.jobs import jobs
from zaqar_lite.service.jobs.bulk import Choice, Job, JobAct, Order
from zaqar_lite.service.metrics.queue_depths import RecentRates
from zaqar_lite.service.pooling import placement
from zaqar_lite.service.pooling.placement import Place, Placements
from zaqar_lite.service.pooling.pools import PoolRegistry, StoreKind
from zaqar_lite.service.post_validation import Draft
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
    return posted_response("/", [Posted("id", False)] * 1_600), _ROUNDS * 1_600 // STEP


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
    return (await _places(one)).queues_of("p", 2), 20


@pytest.mark.parametrize(
    "prepare",
    [
        *(read_a_post, answer_a_post, post_to_a_topic, search_topics, page_of_records),
        *(route_by_filters, match_letters, count_queues, load_quotas, ask_what_a_pool_holds),
        look_for_a_projects_queues,
    ],
)
async def test_others_run_between_the_steps(prepare: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time ends a step, each part is one here; pages are small."""
    monkeypatch.setattr(yielding, "_SLICE", 0.0)
    monkeypatch.setattr(placement, "_READ_AT_ONCE", 10)
    monkeypatch.setattr(placement, "_PAGE", 10)
    monkeypatch.setattr(quotas, "_READ_AT_ONCE", 10)
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
