"""Claims by their ids: the async client's methods."""

from collections.abc import Iterable
from functools import partial

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import claims
from zaqar_lite.client.errors import Unreachable, Unsupported
from zaqar_lite.client.line import Line
from zaqar_lite.client.models import Held
from zaqar_lite.client.settlements import Settled, Settlement
from zaqar_lite.client.shell import chunks
from zaqar_lite.client.waiting import POLL


class AsyncClaims(AsyncCalls):
    """Create, read, renew, settle and release claims."""

    async def create_claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 300,
        grace: int = 60,
        details: bool = False,
        raw: bool = False,
        wait: float = 0,
        poll: float = POLL,
        line: Line | None = None,
    ) -> Held | None:
        """Claim messages, None if there is none; `claim` also renews and ends it.

        With `wait` it waits up to so many seconds for a message; `line.hang_up()` ends that. A
        server that does not wait is asked about every `poll` seconds.

        An answer that is lost leaves its messages claimed until `ttl` seconds are over: they are
        delayed, never lost.
        """
        if line is not None and line.over:
            return None
        make = partial(
            claims.claim,
            queue,
            limit=limit,
            ttl=ttl,
            grace=grace,
            details=details or self.tracing is not None,
            raw=raw,
            line=line,
        )
        try:
            return await self._until_found(make, wait, poll=poll, line=line)
        except Unreachable:
            if line is not None and line.over:
                return None
            raise

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

    async def release_claim(self, queue: str, claim_id: str, *, delay: int | None = None) -> None:
        """Give back what a claim still holds; an absent claim is no error.

        At once, or after `delay` seconds, which OpenStack's Zaqar ignores.
        """
        await self.call(claims.release(queue, claim_id, delay=delay))

    async def settle(
        self, queue: str, claim_id: str, settlements: Iterable[Settlement]
    ) -> list[Settled]:
        """Settle messages of a claim, each for itself; return one result for each, in their order.

        Raises:
            Unsupported: this server cannot.
            BadRequest: a value is out of range; the description names it.
        """
        settled: list[Settled] = []
        for part in chunks(settlements, self.page_size):
            try:
                settled += await self.call(claims.settle(queue, claim_id, part))
            except Unsupported:
                self.settles = False
                raise
        return settled
