"""The rules of claims: create, read, renew and release."""

from collections.abc import Sequence

from zaqar_lite.domain.errors import Invalid, NotFound
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.limits import MIN_CLAIM_GRACE, MIN_CLAIM_TTL, Limits, check_limit
from zaqar_lite.domain.models import (
    Claim,
    Claimed,
    Message,
    QueueRef,
    Take,
)
from zaqar_lite.service.policy import Policies, Policy
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore


class Claims:
    """What a user may do with claims."""

    def __init__(
        self, messages: MessageStore, queues: Queues, policies: Policies, limits: Limits
    ) -> None:
        self._messages = messages
        self._queues = queues
        self._policies = policies
        self._limits = limits

    async def create(
        self,
        queue: QueueRef,
        *,
        limit: int,
        ttl: int | None,
        grace: int | None,
        client_id: str,
        details: bool = False,
        large: bool = False,
    ) -> tuple[str, Sequence[Message]] | None:
        """Claim up to `limit` messages for `ttl` seconds; None when there is nothing to claim.

        Exhausted messages are in the dead-letter queue before this returns, and it exists unless
        the project has too many queues.

        Raises:
            Invalid: a value is out of range.
        """
        limits = self._limits
        check_limit(limit, limits.claim(large=large))
        ttl = self._ttl(ttl)
        grace = limits.default_claim_grace if grace is None else grace
        if not MIN_CLAIM_GRACE <= grace <= limits.max_claim_grace:
            raise Invalid(
                f"The grace of a claim must be between {MIN_CLAIM_GRACE} and "
                f"{limits.max_claim_grace} seconds; it is {grace}."
            )

        async def act(policy: Policy) -> Claimed:
            claimed = await self._messages.claim(
                queue,
                Take(
                    limit=limit,
                    ttl_ms=ttl * 1000,
                    grace_ms=grace * 1000,
                    client_id=client_id,
                    delay_mode=policy.delay_mode,
                    retries=policy.retries,
                    details=details,
                    version=policy.version,
                ),
            )
            if claimed.moved:
                await self._queues.ensure_dead_letter_queue(policy.letters_in)
            return claimed

        claimed = await self._policies.take(queue, act)
        if claimed.claim_id is None or not claimed.messages:
            return None
        return claimed.claim_id, claimed.messages

    async def get(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim.

        Raises:
            NotFound: unknown, released or lapsed.
        """
        _check_id(claim_id)
        return await self._messages.get_claim(queue, claim_id, details=details)

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
        grace = self._limits.default_claim_grace if grace is None else grace
        grace = min(max(grace, 0), self._limits.max_claim_grace)
        _check_id(claim_id)
        await self._messages.renew(queue, claim_id, ttl_ms=ttl * 1000, grace_ms=grace * 1000)

    async def release(self, queue: QueueRef, claim_id: str, *, delay: int = 0) -> None:
        """End a claim: its messages are ready in `delay` seconds; no error when it has ended.

        Raises:
            Invalid: the delay is out of range.
        """
        longest = self._limits.max_claim_ttl
        if not 0 <= delay <= longest:
            raise Invalid(f"The delay must be between 0 and {longest} seconds; it is {delay}.")
        if is_claim_id(claim_id):
            await self._messages.release(queue, claim_id, delay_ms=delay * 1000)

    def _ttl(self, ttl: int | None) -> int:
        ttl = self._limits.default_claim_ttl if ttl is None else ttl
        if not MIN_CLAIM_TTL <= ttl <= self._limits.max_claim_ttl:
            raise Invalid(
                f"The ttl of a claim must be between {MIN_CLAIM_TTL} and "
                f"{self._limits.max_claim_ttl} seconds; it is {ttl}."
            )
        return ttl


def _check_id(claim_id: str) -> None:
    if not is_claim_id(claim_id):
        raise NotFound(f"Claim {claim_id!r} does not exist.")
