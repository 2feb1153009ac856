"""Claims of the async client; `claims` says what all claims do."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zaqar_lite.client.errors import (
    BadRequest,
    ClaimLost,
    MessageNotFound,
    Unsupported,
    ZaqarError,
)
from zaqar_lite.client.ledger import ClaimOptions, Ledger
from zaqar_lite.client.models import Message
from zaqar_lite.client.settlements import Act, Settled, Settlement
from zaqar_lite.client.termination import ASYNC_TERMINATION

if TYPE_CHECKING:
    from zaqar_lite.client.asynchronous.claims import AsyncClaims


class AsyncClaim(Ledger):
    """An async claim; made by `AsyncClient.claim`. In its block the loop is a plain `for`."""

    HOW = (
        "use `async with client.claim(...) as claim:`, or iterate: "
        "`async for message in client.claim(...)`"
    )

    def __init__(self, client: "AsyncClaims", queue: str, options: ClaimOptions) -> None:
        super().__init__(queue, options, client.page_size)
        self._client = client
        self._renewing: asyncio.Task[None] | None = None
        self._holder: asyncio.Task[Any] | None = None
        self._turn: list[tuple[Settlement, asyncio.Future[Settled]]] = []
        self._turns: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; the one before counts as processed when the next is asked for.

        Raises:
            ClaimLost: the claim lapsed meanwhile; someone else may have the rest.
            TypeError: this is not in an `async with` block: use `async for`.
        """
        return self._iterate()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the messages, as `for` does; outside of a block, claim and end the claim too."""
        if self._begun:
            for message in self._iterate():
                yield message
        else:
            async with self:
                for message in self._iterate():
                    yield message

    async def __aenter__(self) -> Self:
        self._enter()
        options = self._options
        task = asyncio.current_task()
        if self._client.release_on_sigterm and ASYNC_TERMINATION.hold(task):
            self._holder = task
        sent_at = time.monotonic()
        making = asyncio.ensure_future(
            self._client.create_claim(
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
        )
        try:
            # A cancelled request may have claimed: wait for the answer and give back what it took.
            self._begin(await asyncio.shield(making), sent_at)
        except asyncio.CancelledError:
            self._line.hang_up()
            try:
                with contextlib.suppress(ZaqarError):
                    self._begin(await making, sent_at)
                    for call in self._ending():
                        await self._client.call(call)
            finally:
                self._let_go()
            raise
        except BaseException:
            self._let_go()
            raise
        if self._renewals() is not None:
            self._renewing = asyncio.create_task(self._renew(), name="zaqar-renew")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.gather(self._renewing, return_exceptions=True)
            try:
                await asyncio.gather(*self._turns)
                await self._end()
            except ZaqarError as failure:
                self._ended_badly(failure, error)
        finally:
            self._let_go()

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
        as the queue's `_retry_backoff` says then. `reason` (128 bytes) and `detail` (2 KiB) stand
        in its attempts. What is done so far is deleted in the same request.

        Several of one turn of the event loop are one request.

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
        result: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._turn.append((settlement, result))
        if len(self._turn) == 1:
            turn = asyncio.create_task(self._send_turn(), name="zaqar-settle")
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)
        (await asyncio.shield(result)).check()

    async def _send_turn(self) -> None:
        """Send what was asked for until now, in one request."""
        turn, self._turn = self._turn, []
        try:
            results = await self.settle(*(settlement for settlement, _ in turn))
        except Exception as error:  # noqa: BLE001 - raised by those who asked
            for _, future in turn:
                future.set_exception(error)
        else:
            for (_, future), result in zip(turn, results, strict=True):
                future.set_result(result)

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
            # A server that cannot, or takes fewer at once, is asked in two steps.
            with contextlib.suppress(Unsupported, BadRequest):
                results = await self._carry_out(last)
                for settlement, result in zip(last, results, strict=True):
                    if settlement.act is Act.DELETE:
                        result.check()
                return
        for call in self._ending():
            await self._client.call(call)

    def _let_go(self) -> None:
        if self._holder is not None:
            holder, self._holder = self._holder, None
            ASYNC_TERMINATION.let_go(holder)

    async def _renew(self) -> None:
        every, claim_id = self._renewals(), self.id
        while every is not None and claim_id is not None:
            await asyncio.sleep(every)
            if self._all_settled():
                return
            if not self._keeping:
                continue
            sent_at = time.monotonic()
            try:
                await self._client.call(self._renewal(claim_id))
                self._renewed(sent_at)
            except ZaqarError as error:
                if isinstance(error, ClaimLost) and await self._is_over():
                    return
                if self._not_renewed(error):
                    return

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
