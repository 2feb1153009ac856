# Generated from asynchronous/claiming.py by tests/generate_sync.py; change it there.
"""Claims for the length of a block: the sync client's method."""

from zaqar_lite.client.claims import Claim
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.sync.claims import SyncClaims
from zaqar_lite.client.waiting import POLL


class SyncClaiming(SyncClaims):
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
    ) -> Claim:
        """Claim messages for a `with` block; `ClaimOptions` explains the arguments.

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
        return Claim(self, queue, options)
