"""Claims for the length of a block: the async client's method."""

from zaqar_lite.client.async_claims import AsyncClaim
from zaqar_lite.client.asynchronous.claims import AsyncClaims
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.waiting import POLL


class AsyncClaiming(AsyncClaims):
    """Claim messages for a block."""

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
        wait: float = 0,
        poll: float = POLL,
    ) -> AsyncClaim:
        """Claim messages for an `async with` block; `ClaimOptions` explains the arguments.

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
            wait=wait,
            poll=poll,
        )
        return AsyncClaim(self, queue, options)
