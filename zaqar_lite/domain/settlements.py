"""What a consumer does with a message that it holds, and how a hand-out ends.

Durations are milliseconds, instants milliseconds since 1970 (see `models`).
"""

from collections.abc import Sequence
from enum import Enum
from random import random
from typing import NamedTuple, Self

from msgspec import Struct

from zaqar_lite.domain.attempts import LAPSED, REJECTED, Attempt, Ended
from zaqar_lite.domain.models import NO_RETRIES, RetryPolicy

PARKED_MARGIN_MS = 60_000
"""A parked message lives at least this much longer than its parking lasts."""
_FAILURES = (Ended.FAILED, Ended.LAPSED)
_GIVEN_BACK = (Ended.RELEASED, Ended.FAILED)


class Act(Enum):
    """What a consumer does with one message of its claim.

    ACK      delete it: it is done.
    RELEASE  give it back, at once or after a delay, as failed or not.
    EXTEND   hold it for longer.
    DEAD     send it to the dead letters now.
    """

    ACK = "ack"
    RELEASE = "release"
    EXTEND = "extend"
    DEAD = "dead"


class Outcome(Enum):
    """What became of a settlement.

    DONE       it is so; also when the same act under this claim had been done before.
    NOT_FOUND  there is no such live message in the queue (any more).
    LAPSED     the claim does not hold it: the lease lapsed, or was ended by another act.
    HELD       another live claim holds it.
    NO_TARGET  DEAD where the queue has neither a dead-letter queue nor a failed list.
    """

    DONE = "done"
    NOT_FOUND = "not_found"
    LAPSED = "lapsed"
    HELD = "held"
    NO_TARGET = "no_target"


class Settlement(Struct, frozen=True, gc=False):
    """What a consumer says of one message of its claim.

    `delay_ms` (RELEASE): None is the back-off's delay when it failed and there is one, else 0.
    `reason` has at most MAX_REASON and `detail` at most MAX_DETAIL bytes (RELEASE, DEAD).
    `ttl_ms` and `grace_ms` (EXTEND): the message's lease ends `ttl_ms` from now, and its own ttl
    is raised to `ttl_ms + grace_ms` where it would end earlier than the lease.
    """

    message_id: str
    act: Act
    delay_ms: int | None = None
    failed: bool = False
    reason: str | None = None
    detail: str | None = None
    ttl_ms: int = 0
    grace_ms: int = 0

    def without_lease(self, *, is_held: bool, is_last_claim: bool, ended: Ended | None) -> Outcome:
        """The outcome by a claim that does not hold the message by a live lease.

        `is_held` tells whether another claim does, `is_last_claim` whether this one held it last,
        and `ended` how the last hand-out ended, None where its lease has lapsed unseen.
        """
        if is_held:
            return Outcome.HELD
        is_again = is_last_claim and ended in _GIVEN_BACK and self.act is Act.RELEASE
        return Outcome.DONE if is_again else Outcome.LAPSED


class Settled(NamedTuple):
    """One outcome for each settlement, in their order, and how many dead letters were moved."""

    outcomes: Sequence[Outcome]
    moved: int


class HandOut(NamedTuple):
    """A hand-out that lasts: its number is the message's claim count.

    `failures` is how often the message had failed before.
    """

    number: int
    claimed_at: int
    client_id: str | None
    failures: int


class Result(NamedTuple):
    """What has become of a message: it is ready at an instant, which may be over.

    Where there is a `letter_reason` it is a dead letter instead.
    """

    attempt: Attempt
    failures: int
    ready_at: int
    letter_reason: str | None


class Ending(NamedTuple):
    """How and when a hand-out ends; a failure without a delay of its own waits for the back-off."""

    outcome: Ended
    at: int
    retries: RetryPolicy = NO_RETRIES
    delay_ms: int | None = None
    reason: str | None = None
    detail: str | None = None

    @classmethod
    def by(cls, settlement: Settlement, at: int, retries: RetryPolicy) -> Self:
        """The end by a settlement, RELEASE or DEAD."""
        reason, outcome = settlement.reason, Ended.RELEASED
        if settlement.act is Act.DEAD:
            outcome, reason = Ended.DEAD, reason or REJECTED
        elif settlement.failed:
            outcome = Ended.FAILED
        return cls(outcome, at, retries, settlement.delay_ms, reason, settlement.detail)

    @classmethod
    def by_lapse(cls, lease_end: int, retries: RetryPolicy) -> Self:
        """The end of a lease by time."""
        return cls(Ended.LAPSED, lease_end, retries, reason=LAPSED)

    def apply(self, hand_out: HandOut) -> Result:
        """End a hand-out: a failure counts, and is a dead letter at a limit of the queue."""
        has_failed = self.outcome in _FAILURES
        failures = hand_out.failures + has_failed
        letter, backoff = self.retries
        letter_reason = self.reason if self.outcome is Ended.DEAD else None
        if has_failed and letter is not None:
            letter_reason = letter.spent(hand_out.number, failures)
        wait_ms = self.delay_ms or 0
        if letter_reason:
            wait_ms = 0
        elif has_failed and self.delay_ms is None and backoff is not None:
            wait_ms = backoff.delay_ms(failures, random())  # noqa: S311 - jitter
        attempt = Attempt(
            hand_out.number,
            hand_out.claimed_at,
            self.at,
            self.outcome,
            wait_ms,
            self.reason,
            self.detail,
            hand_out.client_id,
        )
        return Result(attempt, failures, self.at + wait_ms, letter_reason)
