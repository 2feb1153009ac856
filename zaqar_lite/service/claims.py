"""The rules of claims: create, read, renew, release, and settle single messages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zaqar_lite.domain.attempts import MAX_DETAIL, MAX_REASON
from zaqar_lite.domain.errors import Conflict, Forbidden, Invalid, NotFound
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.limits import MIN_CLAIM_GRACE, MIN_CLAIM_TTL, Limits, check_range, page_limit
from zaqar_lite.domain.models import (
    Claim,
    ClaimRequest,
    Message,
    QueueRef,
)
from zaqar_lite.domain.refusals import no_claim
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.service.policy import Policies, Policy
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore


@dataclass(eq=False, repr=False)
class Claims:
    """What a user may do with claims.

    `shortest` is the least ttl of a claim in seconds, and of a lease that is extended.
    """

    messages: MessageStore
    queues: Queues
    policies: Policies
    limits: Limits
    shortest: int = MIN_CLAIM_TTL

    def request(
        self,
        *,
        limit: int | None,
        ttl: int | None,
        grace: int | None,
        client_id: str,
        details: bool,
        large: bool,
    ) -> ClaimRequest:
        """What a claim of up to `limit` messages for `ttl` seconds asks for.

        Raises:
            Invalid: a value is out of range.
        """
        limits = self.limits
        limit, ttl = page_limit(limit, limits.claim(large=large)), self._ttl(ttl)
        grace = limits.default_claim_grace if grace is None else grace
        longest = limits.max_claim_grace
        check_range("The grace of a claim", grace, MIN_CLAIM_GRACE, longest, " seconds")
        return ClaimRequest(
            limit, ttl_ms=ttl * 1000, grace_ms=grace * 1000, client_id=client_id, details=details
        )

    async def create(
        self, queue: QueueRef, request: ClaimRequest
    ) -> tuple[str, Sequence[Message]] | None:
        """Claim messages; None when there is nothing to claim.

        Exhausted messages are in the dead-letter queue before this returns, and it exists unless
        the project has too many queues.
        """
        claimed = await self.queues.claim(queue, request, self.messages)
        return None if claimed.claim_id is None else (claimed.claim_id, claimed.messages)

    async def get(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim.

        Raises:
            NotFound: unknown, released or lapsed.
        """
        _check_id(claim_id)
        return await self.messages.get_claim(queue, claim_id, details=details)

    async def renew(
        self, queue: QueueRef, claim_id: str, *, ttl: int | None, grace: int | None
    ) -> None:
        """Renew a live claim for `ttl` seconds from now; a value that is not given is the default.

        The grace is bounded, not refused, because upstream does not check it here.

        Raises:
            Invalid: the ttl is out of range.
            NotFound: unknown, released or lapsed.
        """
        ttl = self._ttl(ttl)
        grace = self.limits.default_claim_grace if grace is None else grace
        grace = min(max(grace, 0), self.limits.max_claim_grace)
        _check_id(claim_id)
        renewal = Settlement("", Act.EXTEND, ttl_ms=ttl * 1000, grace_ms=grace * 1000)
        settled = await self.messages.settle(queue, claim_id, renewal)
        if settled.outcomes[0] is not Outcome.DONE:
            raise no_claim(claim_id)

    async def release(self, queue: QueueRef, claim_id: str, *, delay: int = 0) -> None:
        """End a claim: its messages are ready in `delay` seconds; no error when it has ended.

        Raises:
            Invalid: the delay is out of range.
        """
        check_range("The delay", delay, 0, self.limits.max_claim_ttl, " seconds")
        if is_claim_id(claim_id):
            given_back = Settlement("", Act.RELEASE, delay_ms=delay * 1000)
            await self.messages.settle(queue, claim_id, given_back)

    def _ttl(self, ttl: int | None) -> int:
        ttl = self.limits.default_claim_ttl if ttl is None else ttl
        longest = self.limits.max_claim_ttl
        check_range("The ttl of a claim", ttl, self.shortest, longest, " seconds")
        return ttl

    async def settle(
        self, queue: QueueRef, claim_id: str, settlements: Sequence[Settlement]
    ) -> Sequence[Outcome]:
        """Settle as many messages as `check_count` allows; answer an outcome for each, in order.

        Dead letters have left the queue when this returns, and are in their own then or at once
        afterwards (see the seam). That queue exists unless the project has too many.

        Raises:
            Invalid: a value is out of range, or a message is named twice.
        """
        self._check_settlements(settlements)
        if not is_claim_id(claim_id):
            return [Outcome.NOT_FOUND] * len(settlements)

        async def act(policy: Policy) -> Settled:
            settled = await self.messages.settle(
                queue, claim_id, settlements, retries=policy.retries, version=policy.version
            )
            if settled.moved:
                await self.queues.ensure_dead_letter_queue(policy.letters_in)
            return settled

        return (await self.policies.decide(queue, act)).outcomes

    async def settle_one(self, queue: QueueRef, claim_id: str, settlement: Settlement) -> None:
        """Settle one message.

        Raises:
            Invalid: a value is out of range.
            NotFound: no such message (any more).
            Forbidden: another live claim holds it.
            Conflict: the claim does not hold it, or the queue has nowhere for dead letters.
        """
        (outcome,) = await self.settle(queue, claim_id, [settlement])
        text = explain(outcome, settlement)
        match outcome:
            case Outcome.NOT_FOUND:
                raise NotFound(text)
            case Outcome.HELD:
                raise Forbidden(text)
            case Outcome.LAPSED | Outcome.NO_TARGET:
                raise Conflict(text)

    def check_count(self, count: int) -> None:
        """Check how many messages one request settles. Raises Invalid: none, or too many."""
        check_range("The number of messages", count, 1, self.limits.claim(large=True))

    def _check_settlements(self, settlements: Sequence[Settlement]) -> None:
        names = [one.message_id for one in settlements]
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise Invalid(f"Message {twice!r} is named twice.")
        longest_ms = self.limits.max_claim_ttl * 1000
        ack, extend = Act.ACK, Act.EXTEND
        for one in settlements:
            if one.act is ack:
                continue
            if one.act is extend:
                if not self.shortest * 1000 <= one.ttl_ms <= longest_ms:
                    raise _wrong(
                        one,
                        f"the ttl must be between {self.shortest} and "
                        f"{self.limits.max_claim_ttl} seconds",
                    )
                continue
            if one.delay_ms is not None and not 0 <= one.delay_ms <= longest_ms:
                longest = self.limits.max_claim_ttl
                raise _wrong(one, f"the delay must be between 0 and {longest} seconds")
            if one.reason is not None and len(one.reason.encode()) > MAX_REASON:
                raise _wrong(one, f"the reason must have at most {MAX_REASON} bytes (UTF-8)")
            if one.detail is not None and len(one.detail.encode()) > MAX_DETAIL:
                raise _wrong(one, f"the detail must have at most {MAX_DETAIL} bytes (UTF-8)")


def _check_id(claim_id: str) -> None:
    if not is_claim_id(claim_id):
        raise NotFound(f"Claim {claim_id!r} does not exist.")


def _wrong(one: Settlement, what: str) -> Invalid:
    return Invalid(f"Message {one.message_id!r}: {what}.")


def explain(outcome: Outcome, settlement: Settlement) -> str:
    """Say what became of a settlement that was not done; empty when it was."""
    name = f"Message {settlement.message_id!r}"
    match outcome:
        case Outcome.NOT_FOUND:
            return f"{name} does not exist (any more)."
        case Outcome.HELD:
            return f"{name} is held by another claim."
        case Outcome.LAPSED:
            return (
                f"{name} is not held by this claim: its lease lapsed, or the claim let it go by "
                "another act."
            )
        case Outcome.NO_TARGET:
            return (
                f"{name} can't be a dead letter: the queue has no _dead_letter_queue"
                " and no _failed_retention."
            )
    return ""
