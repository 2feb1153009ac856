"""What a consumer does with a message that it holds, and what came of it.

Durations are milliseconds, instants milliseconds since 1970 (see `models`).
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct


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


class Settled(NamedTuple):
    """One outcome for each settlement, in their order, and how many dead letters were moved."""

    outcomes: Sequence[Outcome]
    moved: int
