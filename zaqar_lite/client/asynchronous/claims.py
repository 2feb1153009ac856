"""Claims: the async client's methods."""

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.claims import AsyncClaim
from zaqar_lite.client.endpoints import claims
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.models import (
    Held,
)


class AsyncClaims(AsyncCalls):
    """Claim messages, renew, read and release claims."""

    def claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 300,
        grace: int = 60,
        details: bool = False,
        raw: bool = False,
        renew: bool = True,
        renew_every: float | None = None,
    ) -> AsyncClaim:
        """Claim messages for an `async with` block; the arguments are `ClaimOptions`'.

        The claim is renewed in the background. At the end of the block the messages that were
        processed are deleted and the others released, also when SIGTERM ends the program. A
        claim of nothing is empty (and false), not an error.

        Raises:
            ClaimLost: it lapsed meanwhile; someone else may have the messages.
        """
        options = ClaimOptions(
            limit=limit,
            ttl=ttl,
            grace=grace,
            details=details,
            raw=raw,
            renew=renew,
            renew_every=renew_every,
        )
        return AsyncClaim(self, queue, options)

    async def create_claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 300,
        grace: int = 60,
        details: bool = False,
        raw: bool = False,
    ) -> Held | None:
        """Claim messages, None if there is none; `claim` is the comfortable way.

        An answer that is lost leaves its messages claimed until `ttl` seconds are over: they are
        delayed, never lost.
        """
        return await self.call(
            claims.claim(queue, limit=limit, ttl=ttl, grace=grace, details=details, raw=raw)
        )

    async def get_claim(
        self, queue: str, claim_id: str, *, details: bool = False, raw: bool = False
    ) -> Held:
        """Return a claim and what it still holds.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        return await self.call(claims.get_claim(queue, claim_id, details=details, raw=raw))

    async def renew_claim(
        self, queue: str, claim_id: str, *, ttl: int = 300, grace: int = 60
    ) -> None:
        """Let a claim last `ttl` seconds from now.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        await self.call(claims.renew(queue, claim_id, ttl=ttl, grace=grace))

    async def release_claim(self, queue: str, claim_id: str) -> None:
        """Give back at once what a claim still holds; an absent claim is no error."""
        await self.call(claims.release(queue, claim_id))
