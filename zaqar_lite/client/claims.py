"""Claims as context managers: renewed in the background, processed messages deleted at the end.

What counts as processed: a message is done when the loop over the claim asks for the next one, or
ends. If the body raises or breaks, the message in hand is not done, unless `claim.done(message)`
said so before. What is not done is released at the end and can be claimed again at once.
"""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zaqar_lite.client.endpoints import claims, messages
from zaqar_lite.client.errors import ClaimLost, ZaqarError
from zaqar_lite.client.models import Held, Message
from zaqar_lite.client.shell import chunks
from zaqar_lite.client.termination import ASYNC_TERMINATION, TERMINATION
from zaqar_lite.client.wire import Call

if TYPE_CHECKING:
    from zaqar_lite.client.asynchronous.claims import AsyncClaims
    from zaqar_lite.client.sync.claims import SyncClaims


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How to claim.

    Attributes:
        limit: messages at most; the server allows 20 unless its operator raised it.
        ttl: seconds that the claim lasts without renewal (60 to 43,200).
        grace: seconds that a message outlives the claim, where its own ttl ends earlier.
        details: whether to ask for claim counts, times, headers and dead-letter sources.
        raw: whether bodies stay JSON text (`RawBody`).
        renew: whether to renew in the background while the block runs.
        renew_every: seconds between renewals; a third of the ttl by default.
    """

    limit: int = 10
    ttl: int = 300
    grace: int = 60
    details: bool = False
    raw: bool = False
    renew: bool = True
    renew_every: float | None = None


class Ledger:
    """What a claim holds and what became of it; no I/O."""

    def __init__(self, queue: str, options: ClaimOptions, page_size: int) -> None:
        self.queue = queue
        self.id: str | None = None
        self.messages: Sequence[Message] = ()
        self._options = options
        self._page_size = page_size
        self._done: dict[str, None] = {}
        self._deleted: set[str] = set()
        self._skipped: set[str] = set()
        self._lost: ClaimLost | None = None
        self._until = 0.0

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; the one before counts as processed when the next is asked for.

        Raises:
            ClaimLost: the claim lapsed meanwhile; someone else may have the rest.
        """
        for message in self.messages:
            if message.id in self._done or message.id in self._deleted:
                continue
            self.check()
            yield message
            if message.id not in self._skipped:
                self.done(message)

    def done(self, *processed: Message) -> None:
        """Mark messages as processed: they are deleted when the block ends."""
        for message in processed:
            self._done[message.id] = None

    def skip(self, *unprocessed: Message) -> None:
        """Mark messages as not processed: they are released when the block ends."""
        for message in unprocessed:
            self._skipped.add(message.id)
            self._done.pop(message.id, None)

    def check(self) -> None:
        """Raise ClaimLost if the claim is known to be lost."""
        if self._lost is not None:
            raise self._lost

    def _begin(self, held: Held | None, sent_at: float) -> None:
        if held is not None:
            self.id, self.messages = held.id, held.messages
            # Counted from before the request left: never longer than the server counts.
            self._until = sent_at + self._options.ttl

    def _renewals(self) -> float | None:
        """Return the seconds between renewals, None for none."""
        if self.id is None or not self._options.renew:
            return None
        return self._options.renew_every or self._options.ttl / 3

    def _renewal(self, claim_id: str) -> Call[None]:
        return claims.renew(self.queue, claim_id, ttl=self._options.ttl, grace=self._options.grace)

    def _renewed(self, sent_at: float) -> None:
        self._until = sent_at + self._options.ttl

    def _not_renewed(self, error: ZaqarError) -> bool:
        """Note that a renewal failed; return whether the claim is lost."""
        if isinstance(error, ClaimLost):
            self._lost = error
        elif time.monotonic() >= self._until:
            self._lost = ClaimLost("The claim has lapsed", f"it could not be renewed: {error}")
        return self._lost is not None

    def _acknowledgements(self) -> Iterator[Call[None]]:
        """Yield the calls that delete what is done, checked by the claim's id."""
        if self.id is None:
            return
        for part in chunks(list(self._done), self._page_size):
            yield messages.delete_messages(self.queue, part, claim_ids=[self.id])
            self._deleted.update(part)
            for one in part:
                del self._done[one]

    def _ending(self) -> Iterator[Call[None]]:
        """Yield the calls that end the claim: delete what is done, release the rest."""
        yield from self._acknowledgements()
        if self.id is not None and len(self._deleted) < len(self.messages):
            yield claims.release(self.queue, self.id)

    def _ended_badly(self, error: ZaqarError, during: BaseException | None) -> None:
        """Raise what went wrong at the end, unless something is on its way already."""
        if during is None:
            raise error
        during.add_note(f"The claim on {self.queue} could not be ended either: {error}")


class Claim(Ledger):
    """A sync claim; made by `Client.claim`."""

    def __init__(self, client: "SyncClaims", queue: str, options: ClaimOptions) -> None:
        super().__init__(queue, options, client.page_size)
        self._client = client
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._holding = False

    def __enter__(self) -> Self:
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
            sent_at = time.monotonic()
            try:
                self._client.call(self._renewal(claim_id))
                self._renewed(sent_at)
            except ZaqarError as error:
                if self._not_renewed(error):
                    return


class AsyncClaim(Ledger):
    """An async claim; made by `AsyncClient.claim`. The loop over it is a plain `for`."""

    def __init__(self, client: "AsyncClaims", queue: str, options: ClaimOptions) -> None:
        super().__init__(queue, options, client.page_size)
        self._client = client
        self._renewing: asyncio.Task[None] | None = None
        self._holder: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
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
            sent_at = time.monotonic()
            try:
                await self._client.call(self._renewal(claim_id))
                self._renewed(sent_at)
            except ZaqarError as error:
                if self._not_renewed(error):
                    return
