"""A message store that counts what goes through it, for the services that serve requests."""

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, cast

from zaqar_lite.domain.errors import LimitReached, Unavailable
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Claimed, ClaimRequest, Message, QueueRef, Refusal
from zaqar_lite.domain.posts import NewMessage, Posted
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.service.metrics.shared_counters import (
    LATENCIES,
    LATENESS,
    OPERATIONS,
    MetricFamilies,
    Row,
)
from zaqar_lite.storage.base import MessageStore

Call = Callable[..., Awaitable[Any]]
Count = Callable[[QueueRef, Any, Any], None]
"""Counts what an operation did: its queue, the arguments behind that by position, its result."""


_WITHIN = {"pop": "claim", "release": "settle", "renew": "settle"}
"""What is counted by a name of its own, and the store's operation that does it."""


def instrumented(store: MessageStore, families: MetricFamilies, row: Row) -> MessageStore:
    """The store, with its operations timed and their messages counted."""
    return cast(MessageStore, _InstrumentedStore(store, families, row))


class _InstrumentedStore:
    """A store whose operations are counted; every other attribute is the store's own.

    A claim that removes what it hands out counts as a pop, and what is done to a whole claim as a
    release or a renewal.
    """

    claim: Call
    pop: Call
    settle: Call
    release: Call
    renew: Call

    def __init__(self, store: MessageStore, families: MetricFamilies, row: Row) -> None:
        self._store = store
        self._families = families
        self._row = row
        self._messages = {name: family.first for name, family in families.messages.items()}
        self._dead = {reason: families.dead.at(reason) for reason in families.dead.labels["reason"]}
        self._pickup, self._lateness = families.pickup.first, families.lateness.first
        counts: dict[str, Count] = {
            "post": self._count_post,
            "claim": self._count_claim,
            "pop": self._count_claim,
            "settle": self._count_settle,
            "delete": self._count_delete,
            "move": self._count_move,
        }
        for operation in OPERATIONS:
            act = getattr(store, _WITHIN.get(operation, operation))
            setattr(self, operation, self._timed(operation, act, counts.get(operation)))
        claims: dict[bool, Call] = {False: self.claim, True: self.pop}
        self.claim = lambda queue, request: claims[request.removes](queue, request)
        acts = {Act.RELEASE: self.release, Act.EXTEND: self.renew}
        each = self.settle
        self.settle = lambda queue, claim_id, told, **more: (
            acts[told.act] if isinstance(told, Settlement) else each
        )(queue, claim_id, told, **more)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _timed(self, operation: str, act: Call, count: Count | None) -> Call:
        """An operation that notes how long it took, that it failed, and what it did."""
        cells, observe = self._row.cells, self._row.observe
        seconds = self._families.store_seconds.at(operation)
        errors = self._families.store_errors.at(operation)

        async def call(queue: QueueRef, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
            begun = perf_counter()
            try:
                result = await act(queue, *given, **named)
            except Unavailable as error:
                if not isinstance(error, LimitReached):
                    cells[errors] += 1
                raise
            observe(seconds, LATENCIES, perf_counter() - begun)
            if count is not None:
                count(queue, given, result)
            return result

        return call

    def _count(self, name: str, count: int = 1) -> None:
        self._row.cells[self._messages[name]] += count

    def _count_flow(self, queue: QueueRef, posted: int, claimed: int, deleted: int) -> None:
        if self._row.flows and (flow := self._row.flows.get(queue)):
            flow[0] += posted
            flow[1] += claimed
            flow[2] += deleted

    def _count_post(
        self, queue: QueueRef, given: tuple[Sequence[NewMessage]], posted: Sequence[Posted]
    ) -> None:
        key = given[0][0].idempotency_key
        stored = len(posted)
        if stored > 1 or key is not None:
            stored = sum([not one.duplicate for one in posted])
            self._count("duplicate", len(posted) - stored)
            if key is not None and is_message_id(key.text):
                self._count("redriven", stored)
        self._row.cells[self._messages["posted"]] += stored
        if self._row.flows:
            self._count_flow(queue, stored, 0, 0)

    def _count_claim(self, queue: QueueRef, given: tuple[ClaimRequest], claimed: Claimed) -> None:
        if claimed.moved:
            self._row.add(self._dead["exhausted"], claimed.moved)
        count, removes = len(claimed.messages), given[0].removes
        if count:
            self._count("popped" if removes else "handed_out", count)
            self._count_flow(queue, 0, count, count if removes else 0)
            self._count_waits(claimed.messages, first=0 if removes else 1)

    def _count_waits(self, messages: Sequence[Message], *, first: int) -> None:
        """Count how long the first message had been ready, and how late each delayed one is.

        Both are of first hand-outs alone: those whose claim count is `first`.
        """
        head = messages[0]
        if head.claim_count == first:
            since = max(head.created_at, head.delay_expires_at or 0)
            self._row.observe(self._pickup, LATENESS, max(0, head.now - since) / 1000)
        for message in messages:
            due = message.delay_expires_at
            if due and due <= message.now and message.claim_count == first:
                self._row.observe(self._lateness, LATENESS, (message.now - due) / 1000)

    def _count_settle(
        self, queue: QueueRef, given: tuple[str, Sequence[Settlement]], settled: Settled
    ) -> None:
        done = [
            settlement
            for settlement, outcome in zip(given[1], settled.outcomes, strict=True)
            if outcome is Outcome.DONE
        ]
        acts = [settlement.act for settlement in done]
        deleted, failed = acts.count(Act.ACK), sum(settlement.failed for settlement in done)
        self._count("deleted", deleted)
        self._count("released", acts.count(Act.RELEASE) - failed)
        self._count("failed", failed)
        self._count_flow(queue, 0, 0, deleted)
        rejected = min(acts.count(Act.DEAD), settled.moved)
        self._row.add(self._dead["rejected"], rejected)
        self._row.add(self._dead["failed"], settled.moved - rejected)

    def _count_move(self, _: QueueRef, __: object, outcomes: Sequence[Outcome]) -> None:
        self._count("redriven", sum(one is Outcome.DONE for one in outcomes))

    def _count_delete(
        self, queue: QueueRef, given: tuple[Sequence[str]], refused: Sequence[Refusal]
    ) -> None:
        if not refused:
            self._count("deleted", len(given[0]))
            self._count_flow(queue, 0, 0, len(given[0]))
