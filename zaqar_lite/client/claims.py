"""Claims as context managers: renewed in the background, processed messages deleted at the end.

What counts as processed: a message is done when the loop over the claim asks for the next one, or
ends. If the body raises or breaks, the message in hand is not done, unless `claim.done(message)`
said so before. What is not done is released at the end and can be claimed again at once.

`for message in client.claim("q")` (`async for` with the async client) without a `with` block claims
when the loop begins and ends the claim with the loop.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

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
from zaqar_lite.client.termination import TERMINATION

if TYPE_CHECKING:
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
                    wait=options.wait,
                    poll=options.poll,
                    line=self._line if options.wait else None,
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
                    self._end()
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

    def settle(self, *settlements: Settlement) -> list[Settled]:
        """Settle messages now; return one result for each.

        What is done so far is deleted in the same request.

        Raises:
            ClaimLost: what is done could not be deleted; someone else may have it.
            Unsupported: this server cannot settle single messages.
        """
        gathered = self._gathered(settlements)
        results = self._carry_out(gathered)
        along = len(gathered) - len(settlements)
        for result in results[:along]:
            result.check()
        return results[along:]

    def release(
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

        Raises:
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot; `skip` gives it back at the end of the block.
        """
        self._settle_one(
            Settlement.release(message, delay=delay, failed=failed, reason=reason, detail=detail)
        )

    def extend(self, message: Message | str, ttl: int) -> None:
        """Hold one message for `ttl` seconds from now, whatever becomes of the claim's others.

        Raises:
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot; `Client.renew_claim` holds all for longer.
        """
        self._settle_one(Settlement.extend(message, ttl))

    def dead(
        self, message: Message | str, *, reason: str | None = None, detail: str | None = None
    ) -> None:
        """Send a message to the dead letters now.

        Raises:
            NoDeadLetters: its queue has no place for them; it is still held.
            ClaimLost: the claim does not hold it (any more).
            Unsupported: this server cannot.
        """
        self._settle_one(Settlement.dead(message, reason=reason, detail=detail))

    def _settle_one(self, settlement: Settlement) -> None:
        self.settle(settlement)[0].check()

    def _carry_out(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        with self._settling(settlements) as claim_id:
            results = self._client.settle(self.queue, claim_id, settlements)
            self._left(settlements, results)
        return results

    def _end(self) -> None:
        """Delete what is done and release the rest, in one request if it can be."""
        last = self._last_settlements() if self._client.settles else None
        if last is not None:
            # A server that cannot, or takes fewer at once, is asked in two steps.
            with contextlib.suppress(Unsupported, BadRequest):
                results = self._carry_out(last)
                for settlement, result in zip(last, results, strict=True):
                    if settlement.act is Act.DELETE:
                        result.check()
                return
        for call in self._ending():
            self._client.call(call)

    def _shield(self) -> contextlib.AbstractContextManager[None]:
        return TERMINATION.shield(self._line) if self._holding else contextlib.nullcontext()

    def _let_go(self) -> None:
        if self._holding:
            self._holding = False
            TERMINATION.let_go()

    def _renew(self) -> None:
        every, claim_id = self._renewals(), self.id
        while every is not None and claim_id is not None and not self._stop.wait(every):
            if self._all_settled():
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
        if not self._may_be_over():
            return False
        for call in self._look_ups():
            try:
                self._client.call(call)
            except MessageNotFound:
                continue
            except ZaqarError:
                pass  # unknown: take it for lost
            return False
        return True
