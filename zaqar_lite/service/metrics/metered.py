"""A message store that counts what goes through it, for the services that serve requests."""

import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from zaqar_lite.domain.errors import LimitReached, Unavailable
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Claimed, Message, Refusal
from zaqar_lite.domain.posts import Posted
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.service.metrics.families import LATENCIES, LATENESS, OPERATIONS, Families, Row
from zaqar_lite.storage.base import MessageStore

Call = Callable[..., Awaitable[Any]]


def metered(store: MessageStore, families: Families, row: Row) -> MessageStore:
    """The store, with its operations timed and their messages counted."""
    return cast(MessageStore, _Metered(store, families, row))


class _Metered:
    """What a store does, counted; what is not counted goes to the store itself."""

    def __init__(self, store: MessageStore, families: Families, row: Row) -> None:
        self._store = store
        self._row = row
        self._cells = {name: family.first for name, family in families.messages.items()}
        self._posted, self._duplicate = self._cells["posted"], self._cells["duplicate"]
        self._claimed = self._cells["claimed"]
        self._dead = {reason: families.dead.at(reason) for reason in ("rejected", "failed")}
        self._exhausted = families.dead.at("exhausted")
        self._pickup, self._lateness = families.pickup.first, families.lateness.first
        counting: dict[str, Callable[..., None]] = {
            "post": self._count_post,
            "claim": self._count_claim,
            "pop": self._count_pop,
            "settle": self._count_settle,
            "delete": self._count_delete,
            "move": self._count_move,
        }
        for operation in OPERATIONS:
            setattr(
                self,
                operation,
                _timed(
                    getattr(store, operation),
                    row,
                    families.store_seconds.at(operation),
                    families.store_errors.at(operation),
                    counting.get(operation),
                ),
            )

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _count_post(self, posted: Sequence[Posted], given: tuple[Any, ...]) -> None:
        count = stored = len(posted)
        if count > 1 or posted[0].duplicate:
            stored -= sum([one.duplicate for one in posted])
            self._row.add(self._duplicate, count - stored)
        self._row.cells[self._posted] += stored
        key = given[1][0].idempotency_key
        if key is not None and is_message_id(key.text):
            self._row.add(self._cells["redriven"], stored)

    def _count_claim(self, claimed: Claimed, _: tuple[Any, ...]) -> None:
        if claimed.moved:
            self._row.add(self._exhausted, claimed.moved)
        if claimed.messages:
            self._row.cells[self._claimed] += len(claimed.messages)
            self._note_pickup(claimed.messages)

    def _count_pop(self, popped: Claimed, _: tuple[Any, ...]) -> None:
        if popped.moved:
            self._row.add(self._exhausted, popped.moved)
        if popped.messages:
            self._row.add(self._cells["popped"], len(popped.messages))

    def _note_pickup(self, messages: Sequence[Message]) -> None:
        """Note how long what is handed out for the first time had been ready."""
        first = messages[0]
        if first.delay_expires_at is not None:
            for message in messages:
                due = message.delay_expires_at
                if due is not None and message.claim_count == 1:
                    late = max(0, message.now - due) / 1000
                    self._row.observe(self._lateness, LATENESS, late)
        if first.claim_count == 1:
            since = max(first.created_at, first.delay_expires_at or 0)
            self._row.observe(self._pickup, LATENESS, max(0, first.now - since) / 1000)

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
        rejected = min(rejected, settled.moved)
        self._row.add(self._dead["rejected"], rejected)
        self._row.add(self._dead["failed"], settled.moved - rejected)

    def _count_move(self, outcomes: Sequence[Outcome], _: tuple[Any, ...]) -> None:
        self._row.add(self._cells["redriven"], sum(one is Outcome.DONE for one in outcomes))

    def _count_delete(self, refused: Sequence[Refusal], given: tuple[Any, ...]) -> None:
        if not refused:
            self._row.cells[self._cells["deleted"]] += len(given[1])


def _timed(
    act: Call, row: Row, seconds: int, errors: int, count: Callable[..., None] | None
) -> Call:
    """An operation that notes how long it took, that it failed, and what it did.

    `count` gets the result and what the operation was given by position.
    """
    clock = time.perf_counter

    async def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
        begun = clock()
        try:
            result = await act(*arguments, **named)
        except LimitReached:
            raise
        except Unavailable:
            row.add(errors)
            raise
        took = clock() - begun
        cells = row.cells
        cells[seconds] += int(took * 1_000_000)
        cells[seconds + 1 + bisect_left(LATENCIES, took)] += 1
        if count is not None:
            count(result, arguments)
        return result

    return call
