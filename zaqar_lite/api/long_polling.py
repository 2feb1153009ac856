"""Requests that wait for messages: the `wait` parameter, and a client that goes meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from zaqar_lite.api.authentication import RequestAuthentication
from zaqar_lite.api.checks import Checks
from zaqar_lite.api.request import Refused, Request, do_nothing
from zaqar_lite.domain.errors import Denied
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.identity.authentication import Revalidation
from zaqar_lite.service.long_polling import LongPolling

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class LongRequests:
    """End streams, and requests that wait, once they would not be let in any more."""

    authentication: RequestAuthentication | None
    checks: Checks
    revalidation: Revalidation

    def hold(
        self, request: Request, end: Callable[[Refused | Denied], None]
    ) -> Callable[[], object]:
        """Call `end` with why, soon after a request would not be let in any more.

        What is answered must be called when the request has ended, however it did.
        """
        refused: list[Refused | Denied] = []

        async def may() -> bool:
            try:
                if request.is_signed:
                    await self.checks.check_revoked(request)
                elif self.authentication is not None:
                    await self.authentication.readmit(request)
            except (Refused, Denied) as exc:
                refused.append(exc)
                return False
            return True

        if self.authentication is None and not request.is_signed:
            return do_nothing
        return self.revalidation.hold(may, lambda: end(refused[0]))


@dataclass(eq=False, repr=False)
class Polling:
    """Ask again until there is an answer, the time is over, or the client has gone."""

    long_polling: LongPolling
    long_requests: LongRequests
    longest: int

    def seconds(self, request: Request) -> int:
        """How long a request wants to wait; 0 when it does not.

        Raises:
            Refused: 400, out of range.
        """
        seconds = request.whole("wait", 0)
        if not 0 <= seconds <= self.longest:
            raise Refused(
                400,
                "Invalid parameter",
                f"'wait' must be between 0 and {self.longest} seconds; it is {seconds}.",
            )
        return seconds

    async def ask(
        self,
        request: Request,
        queue: QueueRef,
        seconds: int,
        ask: Callable[[], Awaitable[T | None]],
        *,
        reads: bool = False,
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T | None:
        """Ask once, or until there is an answer; None in the end.

        `undo` takes back an answer whose client went, or was shut out, while it was made. What
        `reads` takes nothing that could be lost; any other answer is given all the same.

        Raises:
            TooMany: too many requests wait already.
            Refused, Denied: the request would not be let in any more.
        """
        if not seconds:
            return await ask()
        request.waits = seconds
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused: list[Refused | Denied] = []

        def refuse(why: Refused | Denied) -> None:
            refused.append(why)
            if not gone.done():
                gone.set_result(None)

        release = self.long_requests.hold(request, refuse)
        unwatch = watch(request, gone)
        try:
            found = await self.long_polling.until_found(queue, seconds, ask, gone=gone, reads=reads)
            if found is not None and gone.done() and undo is not None:
                await undo(found)
                found = None
        finally:
            unwatch()
            release()
        if refused and (found is None or reads):
            raise refused[0]
        return found


def watch(request: Request, gone: asyncio.Future[None]) -> Callable[[], object]:
    """Let `gone` be done once the client has gone; call the answer to stop that."""
    return do_nothing if request.source is None else request.source.watch(gone)
