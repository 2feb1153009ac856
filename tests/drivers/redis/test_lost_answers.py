"""Every third call is lost, before or behind its script: no message is, and none comes twice."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from tests.contract.subject import (
    HOUR,
    QueueUnderTest,
    ack,
    bury,
    extend,
    fail,
    give_back,
    ids,
    new,
)
from tests.contract.test_outbox_messages import with_note
from tests.drivers.redis.inspection import check_queue, keys_by_tag
from tests.drivers.redis.steps import lost
from tests.drivers.redis.test_parts import MOST_AT_ONCE
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import NO_RETRIES, QueueRef, RetryPolicy
from zaqar_lite.domain.settlements import Act, Outcome
from zaqar_lite.storage.redis.faults import ConnectionLost
from zaqar_lite.storage.redis.link import Link
from zaqar_lite.storage.redis.scripts import function

pytestmark = pytest.mark.anyio
T = TypeVar("T")
ACTS = (ack, ack, ack, fail, bury, give_back, lambda one: extend(one, HOUR))
POSTS = 12


class Load:
    """Clients that go on until they have an answer, and what they were told."""

    def __init__(self, queue: QueueUnderTest, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue, self.letters, self.notes = (
            queue.named(f"{queue.ref.name}-{seed}-{name}") for name in ("jobs", "dead", "notes")
        )
        self.retries = RetryPolicy(self.letters.as_dead_letter_queue(100, max_failures=2))
        self.posted: set[str] = set()
        self.noted: set[str] = set()
        self.acknowledged: set[str] = set()
        self.is_over = False

    async def retries_of(self, ref: QueueRef) -> RetryPolicy:
        return self.retries if ref == self.queue.ref else NO_RETRIES

    async def post(self, name: str) -> None:
        for number in range(POSTS):
            size = self.random.choice((1, 3, MOST_AT_ONCE + 1))
            messages = [new("x", key=f"{name}-{number}-{one}", ttl=HOUR) for one in range(size)]
            if size == 1:
                large = replace(messages[0], body=b'"%s"' % (b"x" * 3_000))
                messages = [with_note(large, self.notes)]
            posted = await answered(self.queue.post_all, messages)
            self.posted.update(one.id for one in posted)
            self.noted.update(one.id for one in posted if size == 1)

    async def consume(self) -> None:
        while not self.is_over:
            size = self.random.choice((3, 60, 120))
            policy = self.retries.dead_letter
            claimed = await answered(self.queue.claim, size, dead_letter=policy)
            acts = [self.random.choice(ACTS)(one.id) for one in claimed.messages]
            claim_id = claimed.claim_id or ""
            outcomes = await answered(self.queue.outcomes, claim_id, *acts, retries=self.retries)
            for act, outcome in zip(acts, outcomes, strict=True):
                if act.act is Act.ACK:  # a repeat finds it no more
                    assert outcome in {Outcome.DONE, Outcome.NOT_FOUND}
                    self.acknowledged.add(act.message_id)
            await answered(self.queue.release, claim_id)
            await asyncio.sleep(0.001)

    async def tidy(self) -> None:
        while not self.is_over:
            await answered(self.queue.stores.messages.sweep, 100, self.retries_of)
            some = await answered(self.letters.listed, limit=5)
            await answered(self.letters.move, self.queue, *ids(some))
            await asyncio.sleep(0.01)


async def answered(call: Callable[..., Awaitable[T]], *words: Any, **options: Any) -> T:
    """Repeat a call until it is answered."""
    while True:
        try:
            return await call(*words, **options)
        except Unavailable:
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_calls_are_lost_every_message_has_one_end(
    queue: QueueUnderTest,
    slotted: QueueUnderTest,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """On one server, and with the registrations of a cluster, which may be lost, too."""
    in_slots = seed % 2 == 1
    queue = slotted if in_slots else queue
    load, send = Load(queue, seed), Link.send

    def lose(self: Link, *words: str | bytes | int) -> asyncio.Future[Any]:
        if words[0] not in {"FCALL", "HMGET"} or load.random.random() > 1 / 3:
            return send(self, *words)
        if load.random.random() < 0.5:
            raise ConnectionLost("before the call", sent=False)
        return lost(send(self, *words))

    monkeypatch.setattr(Link, "send", lose)
    beside = [asyncio.create_task(work()) for work in (load.consume, load.consume, load.tidy)]
    await asyncio.gather(load.post("a"), load.post("b"))
    load.is_over = True
    await asyncio.gather(*beside)
    monkeypatch.setattr(Link, "send", send)
    for _ in range(20):
        queue.advance(HOUR // 60)
        await queue.stores.messages.sweep(1_000, load.retries_of)
        await asyncio.sleep(0.02)

    left = Counter(
        ids(await load.queue.listed(limit=5_000) + await load.letters.listed(limit=5_000))
    )
    assert set(left.values()) <= {1}, "twice"
    assert load.posted == set(left) | load.acknowledged
    assert not set(left) & load.acknowledged, "acknowledged, and there"
    told = [json.loads(one.body)["id"] for one in await load.notes.listed(limit=100)]
    assert sorted(told) == sorted(load.noted)
    for tag, keys in keys_by_tag(client).items():
        if f"{queue.ref.name}-{seed}" in tag:
            assert "outbox" not in keys
            if not in_slots:  # else the sweep may come late
                check_queue(client, tag, keys, queue.stores.clock.offset_ms)


async def test_what_may_be_done_twice_is_asked_for_again_when_its_answer_is_lost(
    queue: QueueUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, losing = Link.send, ""
    messages, management = queue.stores.messages, queue.stores.management
    project, twin = queue.ref.project, queue.named(f"{queue.ref.name}-twin")
    posted = await queue.post("a", "b")
    claim_id = await queue.claim_id(1)
    (whole,) = await queue.get(posted[1])
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "list": queue.listed,
        "get": lambda: queue.get(*posted),
        "get_claim": lambda: queue.get_claim(claim_id),
        "next_due": queue.next_due,
        "stats": queue.stats,
        "known": lambda: messages.find_idempotency_keys(queue.ref, ["k"]),
        "settle": lambda: queue.renew(claim_id),
        "import": lambda: messages.import_messages(twin.ref, [whole], source="s", number=1),
        "intend": lambda: management.create_queue(queue.ref, {}, max_queues=9),
        "enlist": lambda: management.create_queue(twin.ref, {}, max_queues=9),
        "get_record": lambda: management.get_record("kind", project, "name"),
        "list_records": lambda: management.list_records("kind", project, limit=1),
        "visits": lambda: messages.sweep(1),
    }

    def lose(self: Link, *words: str | bytes | int) -> asyncio.Future[Any]:
        nonlocal losing
        answer = send(self, *words)
        if not losing or words[:2] != ("FCALL", function(losing)):
            return answer
        losing = ""
        return lost(answer)

    monkeypatch.setattr(Link, "send", lose)
    for operation, act in acts.items():
        losing = operation
        await act()
        assert not losing, f"nobody asks for {operation}"
    losing = "visits"
    assert not await management.sweep_records(1)
    assert not losing
