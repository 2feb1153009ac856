"""One side of the model test: a store, and its answers as they can be compared with another's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.contract.stores import Stores
from tests.contract.subject import QueueUnderTest
from zaqar_lite.domain.attempts import Attempt, Backoff
from zaqar_lite.domain.models import (
    Claimed,
    DeadLetter,
    DelayMode,
    Message,
    QueueRecord,
    QueueRef,
    RetryPolicy,
)

UNIT = 6_000_000
BACKOFF_EXTRA = 70_000
TOLERANCE = 20_000

Fate = tuple[tuple[int, int | None, int] | None, tuple[int, ...] | None]
"""The retry policy of a call: most claims, ttl of the letters and most failures; the back-off."""


@dataclass(frozen=True)
class About:
    """An instant, equal to any that is near it."""

    at: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, About) and abs(self.at - other.at) <= TOLERANCE

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Waits:
    """The end of a delay; what is over is equal to all else that is over."""

    until: int | None
    now: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Waits):
            return False
        if min(self.until or 0, other.until or 0) <= max(self.now, other.now):
            return True  # whether a message is delayed is compared by listings and counts
        return abs((self.until or 0) - (other.until or 0)) <= TOLERANCE

    __hash__ = None  # type: ignore[assignment]


class Names:
    """Numbers for ids, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of an id, a new one if it was not seen before."""
        if text not in self._numbers:
            self._numbers[text] = len(self.ids)
            self.ids.append(text)
        return self._numbers[text]

    def __contains__(self, text: str) -> bool:
        return text in self._numbers

    def pick(self, number: int) -> str:
        """Some id that was seen; one that never was while there is none."""
        return self.ids[number % len(self.ids)] if self.ids else "0" * 32


@dataclass
class Side:
    """One of the two stores, and how its ids are called."""

    stores: Stores
    project: str
    records: dict[str, QueueRecord] = field(default_factory=dict)
    messages: Names = field(default_factory=Names)
    claims: Names = field(default_factory=Names)

    def queue(self, name: str) -> QueueUnderTest:
        return QueueUnderTest(self.stores, QueueRef(self.project, name))

    def version(self, name: str) -> int:
        return self.records[name].version

    def mode(self, name: str) -> DelayMode:
        return self.records[name].delay_mode

    def exposing(self, name: str) -> bool:
        return self.records[name].exposing

    def retries(self, name: str, fate: Fate) -> RetryPolicy:
        """What becomes of the failed messages of a queue, as far as the driver can tell."""
        letter, (policy, backoff) = None, fate
        if policy is not None and name != "dead":
            max_claims, ttl_ms, max_failures = policy
            letter = DeadLetter(self.queue("dead").ref, max_claims, ttl_ms, max_failures)
        if backoff is None:
            return RetryPolicy(letter)
        return RetryPolicy(letter, Backoff(tuple(unit * UNIT + BACKOFF_EXTRA for unit in backoff)))

    async def create(self, name: str) -> None:
        record, _ = await self.stores.management.create_queue(
            QueueRef(self.project, name), {}, max_queues=10
        )
        self.records[name] = record

    async def update(self, name: str, *, delay: int, exposing: bool) -> None:
        old = self.records[name]
        self.records[name] = await self.stores.management.update_queue(
            QueueRecord(old.queue, {"_default_message_delay": delay}, old.version, exposing)
        )

    def claim(self, claim_id: str | None) -> int | None:
        return None if claim_id is None else self.claims.add(claim_id)

    def show(self, message: Message) -> tuple[Any, ...]:
        origin = message.origin
        return (
            self.messages.add(message.id),
            message.body,
            About(message.ttl_ms),  # the end of a back-off may have raised it
            About(message.created_at),
            About(message.expires_at),
            About(message.now),
            self.claim(message.claim_id),
            message.claim_count,
            message.client_id,
            Waits(message.delay_expires_at, message.now),
            None
            if origin is None
            else (
                origin.source,
                About(origin.moved_at),
                origin.claim_count,
                self.claim(origin.last_claim_id),
                origin.last_client_id,
                origin.reason,
                origin.redriven,
            ),
            message.headers,
            self.show_failures(message),
        )

    @staticmethod
    def show_failures(message: Message) -> tuple[Any, ...]:
        until = message.parked_until
        return (
            message.failure_count,
            None if until is None else About(until),
            [attempt._replace(claimed_at=0, ended_at=0) for attempt in message.attempts],
            [(About(attempt.claimed_at), About(attempt.ended_at)) for attempt in message.attempts],
        )

    def show_all(self, messages: Sequence[Message], *, ordered: bool) -> list[tuple[Any, ...]]:
        shown = [self.show(message) for message in messages]
        return shown if ordered else sorted(shown, key=lambda message: int(message[0]))

    def show_claimed(self, name: str, claimed: Claimed) -> tuple[Any, ...]:
        return (
            self.claim(claimed.claim_id),
            self.show_all(claimed.messages, ordered=self.is_ordered(name)),
            claimed.moved,
        )

    def is_ordered(self, name: str) -> bool:
        """Whether the order of claims is promised: not of letters moved while exposing."""
        return name != "dead" and not self.exposing(name)

    async def has_lapsed(self, name: str) -> bool:
        """Whether a lease has lapsed that no claim, pop or sweep has met yet.

        How many of them a call meets is promised only when it takes all that is ready.
        """
        return any(
            message.claim_id is None and message.claim_count > _last_number(message.attempts)
            for message in await self.queue(name).listed(details=True)
        )


def _last_number(attempts: Sequence[Attempt]) -> int:
    return attempts[-1].number if attempts else 0
