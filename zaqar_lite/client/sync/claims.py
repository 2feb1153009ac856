"""Claims: the sync client's methods."""

from zaqar_lite.client.claims import Claim
from zaqar_lite.client.endpoints import claims
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.models import (
    Held,
)
from zaqar_lite.client.sync.calls import SyncCalls


class SyncClaims(SyncCalls):
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
    ) -> Claim:
        """Claim messages for the length of a `with` block; the arguments are `ClaimOptions`'.

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
        return Claim(self, queue, options)

    def create_claim(
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
        return self.call(
            claims.claim(queue, limit=limit, ttl=ttl, grace=grace, details=details, raw=raw)
        )

    def get_claim(
        self, queue: str, claim_id: str, *, details: bool = False, raw: bool = False
    ) -> Held:
        """Return a claim and what it still holds.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        return self.call(claims.get_claim(queue, claim_id, details=details, raw=raw))

    def renew_claim(self, queue: str, claim_id: str, *, ttl: int = 300, grace: int = 60) -> None:
        """Let a claim last `ttl` seconds from now.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        self.call(claims.renew(queue, claim_id, ttl=ttl, grace=grace))

    def release_claim(self, queue: str, claim_id: str) -> None:
        """Give back at once what a claim still holds; an absent claim is no error."""
        self.call(claims.release(queue, claim_id))
