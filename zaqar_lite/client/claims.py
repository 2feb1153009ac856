"""Claims as context managers: renewed in the background, processed messages deleted at the end.

What counts as processed: a message is done when the loop over the claim asks for the next one, or
ends. If the body raises or breaks, the message in hand is not done, unless `claim.done(message)`
said so before. What is not done is released at the end and can be claimed again at once.

`for message in client.claim("q")` (`async for` with the async client) without a `with` block claims
when the loop begins and ends the claim with the loop.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zaqar_lite.client.errors import ClaimLost, MessageNotFound, ZaqarError
from zaqar_lite.client.ledger import ClaimOptions, Ledger
from zaqar_lite.client.models import Message
from zaqar_lite.client.termination import ASYNC_TERMINATION, TERMINATION

if TYPE_CHECKING:
    from zaqar_lite.client.asynchronous.claims import AsyncClaims
    from zaqar_lite.client.sync.claims import SyncClaims


class Claim(Ledger):
    """A sync claim; made by `Client.claim`."""

    HOW = "use `with client.claim(...) as claim:`, or iterate: `for message in client.claim(...)`"

    def __init__(self, client: "SyncClaims", queue: str, options: ClaimOptions) -> None:
        super().__init__(queue, options, client.page_size)
        self._client = client
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._holding = False

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; the one before counts as processed when the next is asked for.

        Outside of a `with` block the loop is one: it claims, and deletes and releases at its end.

        Raises:
            ClaimLost: the claim lapsed meanwhile; someone else may have the rest.
        """
        if self._begun:
            yield from self._iterate()
        else:
            with self:
                yield from self._iterate()

    def __enter__(self) -> Self:
        self._enter()
        options = self._options
        self._holding = self._client.release_on_sigterm and TERMINATION.hold()
        try:
            with self._shield():
                sent_at = time.monotonic()
                held = self._client.create_claim(
                    self.queue,
                    limit=options.limit,
                    ttl=options.ttl,
                    grace=options.grace,
                    details=options.details,
                    raw=options.raw,
                )
                self._begin(held, sent_at)
                if self._renewals() is not None:
                    self._thread = threading.Thread(
                        target=self._renew, name="zaqar-renew", daemon=True
                    )
                    self._thread.start()
        except BaseException:
            self._let_go()
            raise
        if self._holding and TERMINATION.requested:
            self.__exit__(None, None, None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._shield():
                self._stop.set()
                if self._thread is not None:
                    self._thread.join()
                try:
                    for call in self._ending():
                        self._client.call(call)
                except ZaqarError as failure:
                    self._ended_badly(failure, error)
        finally:
            self._let_go()

    def delete_done(self) -> None:
        """Delete now what is done so far, instead of at the end.

        Raises:
            ClaimLost: the claim lapsed; someone else may have the messages.
        """
        for call in self._acknowledgements():
            self._client.call(call)

    def _shield(self) -> contextlib.AbstractContextManager[None]:
        return TERMINATION.shield() if self._holding else contextlib.nullcontext()

    def _let_go(self) -> None:
        if self._holding:
            self._holding = False
            TERMINATION.let_go()

    def _renew(self) -> None:
        every, claim_id = self._renewals(), self.id
        while every is not None and claim_id is not None and not self._stop.wait(every):
            if self._all_deleted():
                return
            if not self._keeping:
                continue
            sent_at = time.monotonic()
            try:
                self._client.call(self._renewal(claim_id))
                self._renewed(sent_at)
            except ZaqarError as error:
                if isinstance(error, ClaimLost) and self._is_over():
                    return
                if self._not_renewed(error):
                    return

    def _is_over(self) -> bool:
        calls = list(self._look_ups())
        for call in calls:
            try:
                self._client.call(call)
            except MessageNotFound:
                continue
            except ZaqarError:
                pass  # unknown: take it for lost
            return False
        return bool(calls) or self._all_deleted()


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
            )
        )
        try:
            # A cancelled request may have claimed: wait for the answer and give back what it took.
            self._begin(await asyncio.shield(making), sent_at)
        except asyncio.CancelledError:
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
                for call in self._ending():
                    await self._client.call(call)
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

    def _let_go(self) -> None:
        if self._holder is not None:
            holder, self._holder = self._holder, None
            ASYNC_TERMINATION.let_go(holder)

    async def _renew(self) -> None:
        every, claim_id = self._renewals(), self.id
        while every is not None and claim_id is not None:
            await asyncio.sleep(every)
            if self._all_deleted():
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
        calls = list(self._look_ups())
        for call in calls:
            try:
                await self._client.call(call)
            except MessageNotFound:
                continue
            except ZaqarError:
                pass  # unknown: take it for lost
            return False
        return bool(calls) or self._all_deleted()
