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
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from zaqar_lite.client.errors import ZaqarError
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.models import Message
from zaqar_lite.client.sync.claims import SyncClaims
from zaqar_lite.client.sync.settling import SyncSettling
from zaqar_lite.client.termination import TERMINATION


class Claim(SyncSettling):
    """A sync claim; made by `Client.claim`."""

    HOW = "use `with client.claim(...) as claim:`, or iterate: `for message in client.claim(...)`"

    def __init__(self, client: SyncClaims, queue: str, options: ClaimOptions) -> None:
        super().__init__(client, queue, options)
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
        self._holding = self._client.release_on_sigterm and TERMINATION.hold()
        try:
            with self._shield():
                sent_at = time.monotonic()
                self._begin(self._create(), sent_at)
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

    def _shield(self) -> contextlib.AbstractContextManager[None]:
        return TERMINATION.shield(self._line) if self._holding else contextlib.nullcontext()

    def _let_go(self) -> None:
        if self._holding:
            self._holding = False
            TERMINATION.let_go()

    def _renew(self) -> None:
        every, claim_id = self._renewals(), self.id
        while every is not None and claim_id is not None and not self._stop.wait(every):
            if not self._renew_once(claim_id):
                return
