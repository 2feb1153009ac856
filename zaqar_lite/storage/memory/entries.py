"""One message in one queue, what holds it, and the keys that stand for posted messages."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from zaqar_lite.domain.attempts import Attempt, Ended, with_attempt
from zaqar_lite.domain.models import Message, Origin


class Claim:
    """A claim and the positions that it holds; empty once it is over.

    It is even while all its leases end together.
    """

    __slots__ = ("client_id", "ends_at", "held", "id", "is_even", "started_at", "ttl_ms")

    def __init__(self, claim_id: str, client_id: str, now: int, ttl_ms: int) -> None:
        self.id = claim_id
        self.client_id = client_id
        self.held: dict[int, None] = {}
        self.is_even = True
        self.ttl_ms = ttl_ms
        self.started_at = now
        self.ends_at = now + ttl_ms


class Shared:
    """How many queues hold one posted message (fan-out)."""

    __slots__ = ("holders",)

    def __init__(self) -> None:
        self.holders = 0


class Entry(Struct, eq=False, gc=False):
    """One message in one queue.

    `claim` is what holds it, until its lease has been ended; `last_claim` the latest there was and
    `last_ended` how that hand-out ended. `lease_until` ends the lease, or the parking.
    `delay_expires_at` is 0 where there was no delay.

    Nothing that an entry refers to may lead back to it: the garbage collector does not see entries,
    because a look at a million of them held up every request for 100 ms.
    """

    id: str
    position: int
    body: bytes
    ttl_ms: int
    created_at: int
    expires_at: int
    priority: int
    client_id: str
    headers: Mapping[str, str] | None
    shared: Shared | None = None
    claim: Claim | None = None
    last_claim: Claim | None = None
    last_ended: Ended | None = None
    claim_count: int = 0
    failure_count: int = 0
    claimed_at: int = 0
    lease_until: int = 0
    is_parked: bool = False
    is_delayed: bool = False
    delay_expires_at: int = 0
    origin: Origin | None = None
    attempts: tuple[Attempt, ...] = ()

    def holder(self, now: int) -> Claim | None:
        """The live claim on it."""
        return self.claim if self.claim is not None and self.lease_until > now else None

    def is_away(self, now: int) -> bool:
        """Whether it is claimed or parked."""
        return (self.claim is not None or self.is_parked) and self.lease_until > now

    def waits(self, now: int) -> bool:
        """Whether it is delayed."""
        return self.is_delayed and self.delay_expires_at > now

    def parked(self, now: int) -> bool:
        """Whether it was given back with a delay that is not over."""
        return self.is_parked and self.lease_until > now

    def end_attempt(
        self,
        outcome: Ended,
        now: int,
        delay_ms: int = 0,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Write the hand-out of now, which has ended, into the history."""
        client_id = None if self.last_claim is None else self.last_claim.client_id
        attempt = Attempt(
            self.claim_count, self.claimed_at, now, outcome, delay_ms, reason, detail, client_id
        )
        self.attempts = with_attempt(self.attempts, attempt)
        self.last_ended = outcome

    def view(self, now: int, delay_expires_at: int | None = None) -> Message:
        """Show the entry to a reader at `now`, with the delay that is given and no attempts."""
        holder = None if self.claim is None else self.holder(now)
        return Message(
            self.id,
            self.position,
            self.body,
            self.ttl_ms,
            self.created_at,
            self.expires_at,
            now,
            None if holder is None else holder.id,
            self.claim_count,
            self.client_id,
            delay_expires_at,
            self.headers,
            self.origin,
            self.failure_count,
            self.lease_until if self.is_parked and self.lease_until > now else None,
        )

    def full_view(self, now: int, *, details: bool = False) -> Message:
        """Show the entry to a reader at `now`, with its delay, and its attempts when asked."""
        message = self.view(now, self.delay_expires_at or None)
        if details:
            message.attempts = self.attempts
        return message


class Known(NamedTuple):
    """A known idempotency key: the ids it answers, what it stands for, when it is forgotten."""

    ids: tuple[str, ...]
    digest: bytes
    until: int
