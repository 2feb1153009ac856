"""The requests that a claim makes while it lasts and when it ends, for the async client."""

import contextlib
import time
from collections.abc import Sequence

from zaqar_lite.client.asynchronous.claims import AsyncClaims
from zaqar_lite.client.errors import (
    BadRequest,
    ClaimLost,
    MessageNotFound,
    Unsupported,
    ZaqarError,
)
from zaqar_lite.client.ledger import ClaimOptions, Ledger
from zaqar_lite.client.models import Held, Message
from zaqar_lite.client.settlements import Act, Settled, Settlement


class AsyncSettling(Ledger):
    """Settle what a claim holds, renew it and end it."""

    def __init__(self, client: AsyncClaims, queue: str, options: ClaimOptions) -> None:
        super().__init__(queue, options, client.page_size)
        self._client = client

    async def _create(self) -> Held | None:
        """Make the claim; one that waits for messages can be hung up meanwhile."""
        options = self._options
        return await self._client.create_claim(
            self.queue,
            limit=options.limit,
            ttl=options.ttl,
            grace=options.grace,
            details=options.details,
            raw=options.raw,
            wait=options.wait,
            poll=options.poll,
            line=self._line if options.wait else None,
        )

    async def delete_done(self) -> None:
        """Delete now what is done so far, instead of at the end.

        Raises:
            ClaimLost: the claim lapsed; someone else may have the messages.
        """
        for call in self._acknowledgements():
            await self._client.call(call)

    async def settle(self, *settlements: Settlement) -> list[Settled]:
        """Settle messages now; return one result for each.

        What is done so far is deleted in the same request.

        Raises:
            ClaimLost: what is done could not be deleted; someone else may have it.
            Unsupported: this server cannot settle single messages.
        """
        gathered = self._gathered(settlements)
        results = await self._carry_out(gathered)
        along = len(gathered) - len(settlements)
        for result in results[:along]:
            result.check()
        return results[along:]

    async def release(
        self,
        message: Message | str,
        *,
        delay: int | None = None,
        failed: bool = False,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Give a message back now: it can be claimed again at once, or after `delay` seconds.

        `failed` counts it towards the queue's `_max_failures`; without a delay of its own it waits
        as the queue's `_retry_backoff` says then. Its attempts show `reason` (128 bytes) and
        `detail` (2 KiB). What is done so far is deleted in the same request.

        Raises:
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot; `skip` gives it back at the end of the block.
        """
        await self._settle_one(
            Settlement.release(message, delay=delay, failed=failed, reason=reason, detail=detail)
        )

    async def extend(self, message: Message | str, ttl: int) -> None:
        """Hold one message for `ttl` seconds from now, whatever becomes of the claim's others.

        Raises:
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot; `Client.renew_claim` holds all for longer.
        """
        await self._settle_one(Settlement.extend(message, ttl))

    async def dead(
        self, message: Message | str, *, reason: str | None = None, detail: str | None = None
    ) -> None:
        """Send a message to the dead letters now.

        Raises:
            NoDeadLetters: its queue has no place for them; it is still held.
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot.
        """
        await self._settle_one(Settlement.dead(message, reason=reason, detail=detail))

    async def _settle_one(self, settlement: Settlement) -> None:
        (await self.settle(settlement))[0].check()

    async def _carry_out(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        with self._settling(settlements) as claim_id:
            results = await self._client.settle(self.queue, claim_id, settlements)
            self._left(settlements, results)
        return results

    async def _end(self) -> None:
        """Delete what is done and release the rest, in one request if it can be."""
        last = self._last_settlements() if self._client.settles else None
        if last is not None:
            # A server that can't do this, or takes fewer at once, is asked in two steps.
            with contextlib.suppress(Unsupported, BadRequest):
                results = await self._carry_out(last)
                for settlement, result in zip(last, results, strict=True):
                    if settlement.act is Act.DELETE:
                        result.check()
                return
        for call in self._ending():
            await self._client.call(call)

    async def _renew_once(self, claim_id: str) -> bool:
        """Renew the claim; return whether there is still something to renew."""
        if self._all_settled():
            return False
        if not self._keeping:
            return True
        sent_at = time.monotonic()
        try:
            await self._client.call(self._renewal(claim_id))
            self._renewed(sent_at)
        except ZaqarError as error:
            if isinstance(error, ClaimLost) and await self._is_over():
                return False
            return not self._not_renewed(error)
        return True

    async def _is_over(self) -> bool:
        if not self._may_be_over():
            return False
        for call in self._look_ups():
            try:
                await self._client.call(call)
            except MessageNotFound:
                continue
            except ZaqarError:
                pass  # unknown: take it for lost
            return False
        return True
