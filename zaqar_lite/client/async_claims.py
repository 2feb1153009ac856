"""Claims of the async client."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Self

from zaqar_lite.client.asynchronous.claims import AsyncClaims
from zaqar_lite.client.asynchronous.settling import AsyncSettling
from zaqar_lite.client.errors import ZaqarError
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.models import Message
from zaqar_lite.client.settlements import Settled, Settlement
from zaqar_lite.client.termination import ASYNC_TERMINATION


class AsyncClaim(AsyncSettling):
    """An async claim; made by `AsyncClient.claim`. In its block the loop is a plain `for`.

    Settlements of single messages that are awaited in one turn of the event loop are one request.
    """

    HOW = (
        "use `async with client.claim(...) as claim:`, or iterate: "
        "`async for message in client.claim(...)`"
    )

    def __init__(self, client: AsyncClaims, queue: str, options: ClaimOptions) -> None:
        super().__init__(client, queue, options)
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
        """Yield the messages; outside of an `async with` block, make and end the claim too."""
        if self._begun:
            for message in self._iterate():
                yield message
        else:
            async with self:
                for message in self._iterate():
                    yield message

    async def __aenter__(self) -> Self:
        self._enter()
        task = asyncio.current_task()
        if self._client.release_on_sigterm and ASYNC_TERMINATION.hold(task):
            self._holder = task
        sent_at = time.monotonic()
        making = asyncio.ensure_future(self._create())
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

    def _let_go(self) -> None:
        if self._holder is not None:
            holder, self._holder = self._holder, None
            ASYNC_TERMINATION.let_go(holder)

    async def _renew(self) -> None:
        every, claim_id = self._renewals(), self.id
        while every is not None and claim_id is not None:
            await asyncio.sleep(every)
            if not await self._renew_once(claim_id):
                return
