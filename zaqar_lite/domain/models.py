"""The values that the service and the stores exchange.

Durations and instants are integer milliseconds (instants since 1970); names end in `_ms` for a
duration and in `_at` for an instant. Bodies are the posted JSON, byte for byte.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from zaqar_lite.domain.attempts import MAX_CLAIMS, MAX_FAILURES, Attempt, Backoff
from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.domain.ids import Marker

DEFAULT_PRIORITY = 100
NO_LIMIT = 1 << 31
"""A limit on a message's counts that no message reaches."""
MAX_REDRIVEN = 255
"""How far it is counted how often a message was redriven."""
MAX_MOVED = 500
"""The most messages that one `move` names."""
MAX_RECORD = 65_536
"""Bytes of one record's value."""
HONOUR_DELAYS = "_honour_delays"
"""The attribute of a queue that honours the delays of its messages, though its default is 0."""


class QueueRef(NamedTuple):
    """Name a queue: its project (tenant) and its name are one value, so none can be forgotten."""

    project: str
    name: str


class DelayMode(Enum):
    """How a claim treats delayed messages.

    IGNORE   a normal queue: `d` is neither read nor tested.
    HONOUR   a delayed queue: a message is claimable once `d <= now`.
    """

    IGNORE = "ignore"
    HONOUR = "honour"


class Capability(Enum):
    """What a driver promises beyond the contract; shown in the README and in `/v2/health`.

    ATOMIC_BATCH  a post stores all of its messages or none, even across a crash.
    EXCLUSIVE     one message is never given to two claims, with any number of server processes.
    DURABLE       what was acknowledged survives the loss of the server process.
    SHARED        several server processes may use the store at once (`--workers` above 1).
    FAN_OUT       filters, priorities and copies of one payload in several queues.
    HISTORY       done and failed messages are kept for their retention.
    """

    ATOMIC_BATCH = "atomic_batch"
    EXCLUSIVE = "exclusive"
    DURABLE = "durable"
    SHARED = "shared"
    FAN_OUT = "fan_out"
    HISTORY = "history"


def is_delayed(metadata: Mapping[str, Any]) -> bool:
    """Whether a queue honours delays: by its default, or by its word where that is 0."""
    return bool(metadata.get("_default_message_delay")) or metadata.get(HONOUR_DELAYS) is True


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue as it is stored: its metadata as the user wrote it, and what we add.

    `version` is unique across all records a name ever had, and grows; a record that was deleted
    and made again has another one. `exposing` is set while a delayed queue that was switched off
    still has delayed messages: what waits is claimable at once, because who claims releases as many
    first, and the sweep releases them in bounded steps until the queue is normal.
    """

    queue: QueueRef
    metadata: Mapping[str, Any]
    version: int
    exposing: bool = False

    @property
    def is_delayed(self) -> bool:
        """Whether what is posted waits for its delay."""
        return is_delayed(self.metadata)

    @property
    def delay_mode(self) -> DelayMode:
        """How claims on this queue treat delayed messages."""
        return DelayMode.HONOUR if self.is_delayed or self.exposing else DelayMode.IGNORE


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A queue's dead-letter policy, as an argument of `claim` and `pop`.

    A message that was claimed `max_claims` times already is moved to `target` instead of being
    handed out; one that fails for the `max_failures`-th time is moved at that failure. Its ttl
    there is `ttl_ms` counted from the move, or what remained when None. A `target` of None is the
    queue's own failed list (HISTORY stores only); `ttl_ms` is then how long the list keeps it, 0
    for ever.
    """

    target: QueueRef | None
    max_claims: int = NO_LIMIT
    ttl_ms: int | None = None
    max_failures: int = NO_LIMIT

    def spent(self, claim_count: int, failure_count: int) -> str | None:
        """Why a message that has just failed is a dead letter now; None when it is not."""
        if failure_count >= self.max_failures:
            return MAX_FAILURES
        return MAX_CLAIMS if claim_count >= self.max_claims else None


class RetryPolicy(NamedTuple):
    """What becomes of a message that fails: a dead letter at a limit, till then a later try.

    `backoff` gives the delay of a failure that names none, and of a lapse; None: none.
    """

    dead_letter: DeadLetter | None = None
    backoff: Backoff | None = None


NO_RETRIES = RetryPolicy()
RetryPolicyOf = Callable[[QueueRef], Awaitable[RetryPolicy]]


async def no_retries(_: QueueRef) -> RetryPolicy:
    """Answer that a queue has no limits and no back-off."""
    return NO_RETRIES


class ClaimRequest(Struct, frozen=True, gc=False):
    """What a claim asks for.

    `ttl_ms` is that of the lease; `grace_ms` how much longer its messages live at least. One that
    `removes` what it hands out - a pop - reads neither, nor `client_id`. `version` is the queue
    record's that decided it. `details` fills the messages' attempts.
    """

    limit: int
    version: int | None = None
    delay_mode: DelayMode = DelayMode.IGNORE
    ttl_ms: int = 0
    grace_ms: int = 0
    client_id: str = ""
    retries: RetryPolicy = NO_RETRIES
    details: bool = False
    removes: bool = False


class ListQuery(Struct, frozen=True, gc=False):
    """What a listing asks for: up to `limit` messages after `marker`, up to and with `until`.

    `exclude_client_id` leaves out what that client posted (echo off). `version` is the queue
    record's that decided it. `details` fills the messages' attempts. `group` asks for the messages
    of one group (`domain/groups.py`) alone.
    """

    limit: int
    marker: Marker | None = None
    until: Marker | None = None
    exclude_client_id: str | None = None
    include_claimed: bool = False
    include_delayed: bool = False
    version: int | None = None
    details: bool = False
    group: str | None = None


class Edit(NamedTuple):
    """A change of a delayed message; the durations count from now, what is None stays.

    With `if_due` it is made only where the message is due in the second of this instant.
    """

    message_id: str
    body: bytes | None = None
    ttl_ms: int | None = None
    delay_ms: int | None = None
    version: int | None = None
    if_due: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Something that is neither a queue nor a message: a subscription, a key, a schedule...

    `value` is JSON, at most MAX_RECORD bytes. `version` is unique across all that a name ever
    held, and grows. `expires_at` is None for what stays until it is deleted.
    """

    kind: str
    project: str
    name: str
    value: bytes
    version: int
    expires_at: int | None = None


class RecordBound(NamedTuple):
    """At most `most` live records of a kind, with `reached` as the error where there are as many.

    Of the project's, of those whose name begins with `prefix`, or of all projects' (`of_server`).
    """

    most: int
    reached: ZaqarLiteError
    prefix: str = ""
    of_server: bool = False


class Spent(NamedTuple):
    """Tokens that were spent of a project's bucket, into which `rate` tokens come a second."""

    bucket: str
    rate: float
    tokens: float


class Origin(Struct, frozen=True, gc=False):
    """Where a dead letter comes from: the claim information the spec asks to keep.

    `source` is the queue's name (the project is the letter's own). `claim_count` is the count
    when it was moved. `reason` is one of ours (MAX_CLAIMS, MAX_FAILURES) or the consumer's.
    `redriven` counts how often it was put back since it was posted; it keeps the rest until it
    dies again.
    """

    source: str
    moved_at: int
    claim_count: int
    last_claim_id: str | None
    last_client_id: str | None
    reason: str = MAX_CLAIMS
    redriven: int = 0

    def put_back(self) -> "Origin":
        """The same, of a message that is redriven once more."""
        return replace(self, redriven=min(self.redriven + 1, MAX_REDRIVEN))


class Move(NamedTuple):
    """How messages go to another queue on demand: where, for how long, and when they are ready.

    `ttl_ms` and `delay_ms` count from the move. With `reset` both counts are 0 there.
    """

    target: QueueRef
    ttl_ms: int
    delay_ms: int = 0
    reset: bool = True


class Message(Struct, gc=False):
    """A stored message as a reader sees it at `now` (the store's clock when it was read).

    `ttl_ms` is the current ttl; a claim may have raised it. `claim_id` is set only while a claim
    on it is live. `delay_expires_at` is the field `d` of the spec, None where there was no delay.
    `parked_until` is set while a message that was given back with a delay waits for its next try.
    `attempts` is filled only for who asks for details, oldest first.
    """

    id: str
    position: int
    body: bytes
    ttl_ms: int
    created_at: int
    expires_at: int
    now: int
    claim_id: str | None = None
    claim_count: int = 0
    client_id: str | None = None
    delay_expires_at: int | None = None
    headers: Mapping[str, str] | None = None
    origin: Origin | None = None
    failure_count: int = 0
    parked_until: int | None = None
    attempts: Sequence[Attempt] = ()

    @property
    def age_ms(self) -> int:
        """How long ago the message was posted; never negative."""
        return max(0, self.now - self.created_at)


class Page(Struct, gc=False):
    """One page of a listing: messages in order of position, and the marker of the next page.

    `marker` is the position of the last message. What lies behind it and was left out here, because
    it was claimed or delayed, may be on the next page. An empty page means that the queue has no
    more now; its marker is the position of the last entry that was examined, or None.
    """

    messages: Sequence[Message]
    marker: int | None


class Claimed(Struct, gc=False):
    """The answer to a claim or a pop.

    `claim_id` is None when no message was handed out, and for a pop. `moved` counts the exhausted
    messages that went to the dead-letter queue with it. `more` is set when a budget ended the
    work: ready messages may be left although fewer than `limit` were handed out.
    """

    claim_id: str | None
    messages: Sequence[Message] = ()
    moved: int = 0
    more: bool = False


class Claim(Struct, gc=False):
    """A live claim: its age since it was made or last renewed, its ttl and what it still holds."""

    id: str
    ttl_ms: int
    age_ms: int
    messages: Sequence[Message]


class RefusalReason(Enum):
    """Why a message was not deleted: held by a live claim that was not named, or by none."""

    CLAIMED = "claimed"
    NOT_CLAIMED = "not_claimed"


class Refusal(NamedTuple):
    """A message that a delete left alone, and why."""

    id: str
    reason: RefusalReason


@dataclass(slots=True)
class Stats:
    """Counts of the live messages of a queue; `ready + delayed` is upstream's `free`.

    `ready_since` is since when the first ready message has been so, about: None where none is, and
    where the store does not tell. `cuts` are ascending positions that cut the queue into ranges of
    about equal size, (.., p1], (p1, p2], ...; the last one is that of the last message.
    """

    ready: int = 0
    delayed: int = 0
    claimed: int = 0
    oldest: Message | None = None
    newest: Message | None = None
    ready_since: int | None = None
    bytes: int = 0
    """The sizes of the bodies, as they are stored."""
    cuts: Sequence[int] = ()

    @property
    def total(self) -> int:
        """All live messages."""
        return self.ready + self.delayed + self.claimed


class SweepResult(NamedTuple):
    """What one bounded sweep did; all zeros mean that there is nothing left to do now."""

    expired: int = 0
    promoted: int = 0
    lapsed: int = 0
    moved: int = 0
    deleted: int = 0
    """Messages whose records went: they had been left behind by a purge."""
    letters_in: frozenset[QueueRef] = frozenset()
    """The dead-letter queues that messages were moved to; they may have no record yet."""

    @property
    def total(self) -> int:
        """How many entries the sweep touched."""
        return self.expired + self.promoted + self.lapsed + self.moved + self.deleted

    def plus(self, other: "SweepResult") -> "SweepResult":
        """What both did together."""
        return SweepResult(
            self.expired + other.expired,
            self.promoted + other.promoted,
            self.lapsed + other.lapsed,
            self.moved + other.moved,
            self.deleted + other.deleted,
            self.letters_in | other.letters_in,
        )


class HistoryState(Enum):
    """Which list of a queue's past: acknowledged, or exhausted without a dead-letter queue."""

    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class HistoryEntry:
    """A message that is over: when it ended, how often it was claimed and by which Client-IDs."""

    id: str
    ended_at: int
    attempts: int
    consumers: Sequence[str] = ()


@dataclass(slots=True)
class HistoryPage:
    """One page of a queue's history, oldest first, and the marker of the next (opaque text)."""

    entries: Sequence[HistoryEntry]
    marker: str | None


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What a store must know beyond its URI: the limits it enforces in its own atomic steps.

    `idempotency_window_ms` is how long a key is remembered; `max_idempotency_keys` and
    `max_messages` are per queue (LimitReached above them). A key has at most
    MAX_IDEMPOTENCY_KEY bytes, so that the keys of a queue are bounded in bytes too: 6,000,000
    in ten minutes are 10,000 keyed posts a second. `workers` is the number of server
    processes that will use the store. `extra` holds the driver's own settings by name.
    """

    idempotency_window_ms: int = 600_000
    max_idempotency_keys: int = 6_000_000
    max_messages: int = 10_000_000
    workers: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
