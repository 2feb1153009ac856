"""The records of a queue: messages, the claims that hold them, and idempotency keys."""

from collections.abc import Mapping

from msgspec import Struct

from zaqar_lite.domain.attempts import Attempt, Ended, with_attempt
from zaqar_lite.domain.models import Message, Origin


class LiveClaim:
    """A claim and the positions of the messages that it holds; it ends with the last of them.

    `is_even` is true while all its leases end at one instant, `ends_at`.
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

    `claim` holds it until an operation ends its lease, which may be after the lease has lapsed.
    `last_claim` is the latest claim and `last_ended` how that hand-out ended. `lease_until` is the
    end of the lease or of the parking. `delay_expires_at` is 0 without a delay.

    The garbage collector does not visit entries (visiting a million of them delayed every request
    by 100 ms), so nothing that an entry refers to may refer back to it.
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
    claim: LiveClaim | None = None
    last_claim: LiveClaim | None = None
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

    def holder(self, now: int) -> LiveClaim | None:
        """The live claim that holds it."""
        return self.claim if self.claim is not None and self.lease_until > now else None

    def is_claimed_or_parked(self, now: int) -> bool:
        """Whether it is claimed or parked."""
        return (self.claim is not None or self.is_parked) and self.lease_until > now

    def is_still_delayed(self, now: int) -> bool:
        """Whether it is delayed."""
        return self.is_delayed and self.delay_expires_at > now

    def end_attempt(
        self,
        outcome: Ended,
        now: int,
        delay_ms: int = 0,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Add the current hand-out to the history: it has ended now."""
        client_id = None if self.last_claim is None else self.last_claim.client_id
        attempt = Attempt(
            self.claim_count, self.claimed_at, now, outcome, delay_ms, reason, detail, client_id
        )
        self.attempts = with_attempt(self.attempts, attempt)
        self.last_ended = outcome

    def view(self, now: int, delay_expires_at: int | None = None) -> Message:
        """The entry as a reader sees it at `now`, with the given delay and without attempts."""
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
        """The entry as a reader sees it at `now`, with its delay and, if asked, its attempts."""
        message = self.view(now, self.delay_expires_at or None)
        if details:
            message.attempts = self.attempts
        return message


class Known(Struct, gc=False):
    """A remembered idempotency key: ids of its messages, their digest, and when it is forgotten."""

    ids: tuple[str, ...]
    digest: bytes
    until: int
