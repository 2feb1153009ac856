"""The rules of settling: what a consumer may say of single messages of its claim."""

from collections.abc import Sequence

from zaqar_lite.domain.attempts import MAX_DETAIL, MAX_REASON
from zaqar_lite.domain.errors import Conflict, Forbidden, Invalid, NotFound
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.limits import MIN_CLAIM_TTL, Limits
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.service.policy import Policies, Policy
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore


class Settling:
    """What a consumer may do with single messages of its claim."""

    def __init__(
        self, messages: MessageStore, queues: Queues, policies: Policies, limits: Limits
    ) -> None:
        self._messages = messages
        self._queues = queues
        self._policies = policies
        self._limits = limits

    async def settle(
        self, queue: QueueRef, claim_id: str, settlements: Sequence[Settlement]
    ) -> Sequence[Outcome]:
        """Settle up to a claim's limit of messages; answer one outcome for each, in their order.

        Dead letters have left the queue when this returns, and are in their own then or at once
        afterwards (see the seam). That queue exists unless the project has too many.

        Raises:
            Invalid: a value is out of range, a message is named twice, or there are too many.
        """
        self._check(settlements)
        if not is_claim_id(claim_id):
            return [Outcome.NOT_FOUND] * len(settlements)

        async def act(policy: Policy) -> Settled:
            settled = await self._messages.settle(
                queue, claim_id, settlements, retries=policy.retries, version=policy.version
            )
            if settled.moved:
                await self._queues.ensure_dead_letter_queue(policy.letters_in)
            return settled

        return (await self._policies.decide(queue, act)).outcomes

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

    def _check(self, settlements: Sequence[Settlement]) -> None:
        most = self._limits.claim(large=True)
        if not 1 <= len(settlements) <= most:
            raise Invalid(f"Between 1 and {most} messages can be settled at once.")
        names = [one.message_id for one in settlements]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Invalid(f"Message {twice!r} is named twice.")
        longest_ms = self._limits.max_claim_ttl * 1000
        ack, extend = Act.ACK, Act.EXTEND
        for one in settlements:
            if one.act is ack:
                continue
            if one.act is extend:
                if not MIN_CLAIM_TTL * 1000 <= one.ttl_ms <= longest_ms:
                    raise _wrong(
                        one,
                        f"the ttl must be between {MIN_CLAIM_TTL} and "
                        f"{self._limits.max_claim_ttl} seconds",
                    )
                continue
            if one.delay_ms is not None and not 0 <= one.delay_ms <= longest_ms:
                longest = self._limits.max_claim_ttl
                raise _wrong(one, f"the delay must be between 0 and {longest} seconds")
            if one.reason is not None and len(one.reason.encode()) > MAX_REASON:
                raise _wrong(one, f"the reason must have at most {MAX_REASON} bytes (UTF-8)")
            if one.detail is not None and len(one.detail.encode()) > MAX_DETAIL:
                raise _wrong(one, f"the detail must have at most {MAX_DETAIL} bytes (UTF-8)")


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
