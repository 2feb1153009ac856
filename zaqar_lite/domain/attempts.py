"""The history of a message's hand-outs, and how long a message that failed waits.

Each hand-out that ended without the message being deleted is an attempt. The first one and the last
ones are kept: the first tells how it began, the last ones how it goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MAX_ATTEMPTS = 16
"""The first attempt and the last 15."""
MAX_REASON = 128
"""Bytes in UTF-8."""
MAX_DETAIL = 2_048
"""Bytes in UTF-8."""
MAX_ATTEMPTS_SIZE = 16_384
"""Bytes of all that is kept of a message's attempts, by `Attempt.size`."""
MAX_BACKOFF_STEPS = 100
"""How many different delays a back-off may have."""

LAPSED = "lapsed"
MAX_CLAIMS = "max_claims"
MAX_FAILURES = "max_failures"
REJECTED = "rejected"
MOVED = "moved"
"""Reasons of ours: the lease ended by time; a limit was reached; dead without a reason given; moved
although it was no dead letter."""


class Ended(Enum):
    """How a hand-out ended: given back, failed, lapsed by time, or sent to the dead letters."""

    RELEASED = "released"
    FAILED = "failed"
    LAPSED = "lapsed"
    DEAD = "dead"


class Attempt(NamedTuple):
    """One hand-out that has ended.

    `number` is the message's claim count at that hand-out. `delay_ms` is how long the message
    then waited.
    """

    number: int
    claimed_at: int
    ended_at: int
    outcome: Ended
    delay_ms: int = 0
    reason: str | None = None
    detail: str | None = None
    client_id: str | None = None

    @property
    def size(self) -> int:
        """Bytes that count towards MAX_ATTEMPTS_SIZE: the texts, and 64 for the rest."""
        texts = (self.reason, self.detail, self.client_id)
        return 64 + sum(len(text.encode()) for text in texts if text is not None)


def with_attempt(attempts: Sequence[Attempt], ended: Attempt) -> tuple[Attempt, ...]:
    """Add an attempt to the history; the second one goes while there are too many or too large."""
    kept = [*attempts, ended]
    while len(kept) > 2 and (
        len(kept) > MAX_ATTEMPTS or sum(one.size for one in kept) > MAX_ATTEMPTS_SIZE
    ):
        del kept[1]
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a message waits after its n-th failure.

    That is `delays_ms[n - 1]`, and the last of them when there are fewer. `jitter` is the part of
    a delay, 0 to 1, that chance adds or takes.
    """

    delays_ms: tuple[int, ...]
    jitter: float = 0.0

    def delay_ms(self, failures: int, luck: float) -> int:
        """The delay after the `failures`-th failure (from 1); `luck` is a number in [0, 1)."""
        delay = self.delays_ms[min(failures, len(self.delays_ms)) - 1]
        return round(delay * (1 + self.jitter * (2 * luck - 1)))
