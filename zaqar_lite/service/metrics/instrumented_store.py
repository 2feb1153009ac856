"""A message store that counts what goes through it, for the services that serve requests."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter as _clock
from typing import Any, cast

from zaqar_lite.domain.errors import LimitReached, Unavailable
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Claimed, ClaimRequest, DelayMode, Message, QueueRef, Refusal
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted
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
_QUICK = LATENCIES[0]
"""Seconds that most calls take at most: they go into the first bucket without a search."""
_LATENESS = [int(bound * 1000) for bound in LATENESS]
"""In milliseconds."""


def instrumented(store: MessageStore, families: MetricFamilies, row: Row) -> MessageStore:
    """The store, with its operations timed and their messages counted."""
    return cast(MessageStore, _Metered(store, families, row))


class _Metered:
    """A store whose operations are counted; every other attribute is the store's own."""

    def __init__(self, store: MessageStore, families: MetricFamilies, row: Row) -> None:
        self._store = store
        self._row = row
        self._cells = {name: family.first for name, family in families.messages.items()}
        self._posted, self._duplicate = self._cells["posted"], self._cells["duplicate"]
        self._dead = {reason: families.dead.at(reason) for reason in ("rejected", "failed")}
        self._exhausted = families.dead.at("exhausted")
        self._pickup, self._lateness = families.pickup.first, families.lateness.first
        counting: dict[str, Callable[..., None]] = {
            "settle": self._count_settle,
            "delete": self._count_delete,
            "move": self._count_move,
        }
        timers = {
            name: _Timer(row, families.store_seconds.at(name), families.store_errors.at(name))
            for name in OPERATIONS
        }
        pop = _timed(store.claim, timers.pop("pop"), self._count_pop)
        for operation, timer in timers.items():
            act = getattr(store, operation)
            if operation == "post":
                timed: Call = self._timed_post(act, timer)
            elif operation == "claim":
                timed = self._timed_claim(act, timer, pop)
            else:
                timed = _timed(act, timer, counting.get(operation))
            setattr(self, operation, timed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _count_post(self, posted: Sequence[Posted], new: Sequence[NewMessage]) -> int:
        """Count a post; answer how many messages it stored."""
        count = stored = len(posted)
        if count > 1 or posted[0].duplicate:
            stored -= sum([one.duplicate for one in posted])
            self._row.add(self._duplicate, count - stored)
        self._row.cells[self._posted] += stored
        key = new[0].idempotency_key
        if key is not None and is_message_id(key.text):
            self._row.add(self._cells["redriven"], stored)
        return stored

    def _count_due(self, messages: Sequence[Message], first: int = 1) -> None:
        """Count how long the first message had been ready, and how late each delayed one is.

        Both are of first hand-outs alone: those whose claim count is `first`.
        """
        head = messages[0]
        if head.claim_count == first:
            since = max(head.created_at, head.delay_expires_at or 0)
            self._row.observe(self._pickup, LATENESS, max(0, head.now - since) / 1000)
        for message in messages:
            due = message.delay_expires_at
            if due is not None and due <= message.now and message.claim_count == first:
                late = (message.now - due) / 1000
                self._row.observe(self._lateness, LATENESS, late)

    def _count_flow(self, queue: QueueRef, *, claimed: int = 0, deleted: int = 0) -> None:
        flow = self._row.flows.get(queue)
        if flow is not None:
            flow[1] += claimed
            flow[2] += deleted

    def _count_pop(self, popped: Claimed, given: tuple[Any, ...]) -> None:
        if popped.moved:
            self._row.add(self._exhausted, popped.moved)
        if popped.messages:
            count = len(popped.messages)
            self._row.add(self._cells["popped"], count)
            self._count_flow(given[0], claimed=count, deleted=count)
            self._count_due(popped.messages, first=0)

    def _count_settle(self, settled: Settled, given: tuple[Any, ...]) -> None:
        settlements: Sequence[Settlement] = given[2]
        done, ack, release, dead = Outcome.DONE, Act.ACK, Act.RELEASE, Act.DEAD
        deleted = released = failed = rejected = 0
        for settlement, outcome in zip(settlements, settled.outcomes, strict=True):
            if outcome is not done:
                continue
            act = settlement.act
            if act is ack:
                deleted += 1
            elif act is release:
                if settlement.failed:
                    failed += 1
                else:
                    released += 1
            elif act is dead:
                rejected += 1
        for name, count in (("deleted", deleted), ("released", released), ("failed", failed)):
            if count:
                self._row.add(self._cells[name], count)
        self._count_flow(given[0], deleted=deleted)
        rejected = min(rejected, settled.moved)
        self._row.add(self._dead["rejected"], rejected)
        self._row.add(self._dead["failed"], settled.moved - rejected)

    def _count_move(self, outcomes: Sequence[Outcome], _: tuple[Any, ...]) -> None:
        self._row.add(self._cells["redriven"], sum(one is Outcome.DONE for one in outcomes))

    def _count_delete(self, refused: Sequence[Refusal], given: tuple[Any, ...]) -> None:
        if not refused:
            self._row.cells[self._cells["deleted"]] += len(given[1])
            if self._row.flows:
                self._count_flow(given[0], deleted=len(given[1]))

    def _timed_claim(self, act: Call, timer: "_Timer", pop: Call) -> Call:
        """A claim that notes how long it took, that it failed, and what it handed out.

        One that removes what it hands out is a `pop`.

        It is apart from `_timed` so that the hot path packs no arguments. How long a message had
        been ready is noted for the first message of a claim, when that is handed out for the first
        time. In delayed queues `_count_due` notes that, and how late each message is.
        """
        cells, flows, done, failed = self._row.cells, self._row.flows, timer.done, timer.failed
        handed_out, exhausted, pickup = self._cells["handed_out"], self._exhausted, self._pickup
        due, normal, waits = self._count_due, DelayMode.IGNORE, pickup + 1

        async def claim(queue: QueueRef, request: ClaimRequest) -> Claimed:
            if request.removes:
                popped: Claimed = await pop(queue, request)
                return popped
            begun = _clock()
            try:
                result: Claimed = await act(queue, request)
            except Unavailable as error:
                failed(error)
                raise
            done(begun)
            if result.moved:
                cells[exhausted] += result.moved
            messages = result.messages
            if messages:
                count = len(messages)
                cells[handed_out] += count
                if flows and (flow := flows.get(queue)) is not None:
                    flow[1] += count
                message = messages[0]
                if request.delay_mode is not normal:
                    due(messages)
                elif message.claim_count == 1:
                    waited = message.now - message.created_at
                    if waited > 0:
                        cells[pickup] += waited / 1000
                        cells[waits + bisect_left(_LATENESS, waited)] += 1
                    else:
                        cells[waits] += 1
            return result

        return claim

    def _timed_post(self, act: Call, timer: "_Timer") -> Call:
        """A post that notes how long it took, that it failed, and how many messages it stored.

        It is apart from `_timed` so that the hot path packs no arguments. A single message without
        an idempotency key is counted in place, everything else by `_count_post`.
        """
        cells, flows, failed = self._row.cells, self._row.flows, timer.failed
        seconds, first = timer.seconds, timer.seconds + 1
        posted, more = self._posted, self._count_post

        async def post(
            queue: QueueRef,
            new: Sequence[NewMessage],
            *,
            client_id: str,
            version: int | None,
            batch_key: IdempotencyKey | None = None,
        ) -> Sequence[Posted]:
            begun = _clock()
            try:
                result: Sequence[Posted] = await act(
                    queue, new, client_id=client_id, version=version, batch_key=batch_key
                )
            except Unavailable as error:
                failed(error)
                raise
            took = _clock() - begun
            cells[seconds] += took
            cells[first if took <= _QUICK else first + bisect_left(LATENCIES, took)] += 1
            if len(result) == 1 and new[0].idempotency_key is None and not result[0].duplicate:
                cells[posted] += 1
                stored = 1
            else:
                stored = more(result, new)
            if flows and (flow := flows.get(queue)) is not None:
                flow[0] += stored
            return result

        return post


class _Timer:
    """Notes how long calls of one operation took, and that they failed."""

    def __init__(self, row: Row, seconds: int, errors: int) -> None:
        first, cells = seconds + 1, row.cells
        self.seconds = seconds

        def done(begun: float) -> None:
            took = _clock() - begun
            cells[seconds] += took
            cells[first if took <= _QUICK else first + bisect_left(LATENCIES, took)] += 1

        def failed(error: Unavailable) -> None:
            if not isinstance(error, LimitReached):
                row.add(errors)

        # Closures, because looking up attributes would cost half as much again.
        self.done, self.failed = done, failed


def _timed(act: Call, timer: _Timer, count: Callable[..., None] | None) -> Call:
    """An operation that notes how long it took, that it failed, and what it did.

    `count` gets the result and what the operation was given by position.
    """
    done, failed = timer.done, timer.failed

    async def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
        begun = _clock()
        try:
            result = await act(*arguments, **named)
        except Unavailable as error:
            failed(error)
            raise
        done(begun)
        if count is not None:
            count(result, arguments)
        return result

    return call
