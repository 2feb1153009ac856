"""Requests that wait for messages: the `wait` parameter, and a client that goes meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from zaqar_lite.api.call import Call, Refused
from zaqar_lite.api.gate import LongRequests
from zaqar_lite.domain.errors import Denied
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.long_polling import LongPolling

T = TypeVar("T")


class Patience:
    """Ask again until there is an answer, the time is over, or the client has gone."""

    def __init__(self, waiting: LongPolling, long_requests: LongRequests, *, longest: int) -> None:
        self._waiting = waiting
        self._long_requests = long_requests
        self._longest = longest

    def seconds(self, call: Call) -> int:
        """How long a request wants to wait; 0 when it does not.

        Raises:
            Refused: 400, out of range.
        """
        seconds = call.whole("wait", 0)
        if not 0 <= seconds <= self._longest:
            raise Refused(
                400,
                "Invalid parameter",
                f"'wait' must be between 0 and {self._longest} seconds; it is {seconds}.",
            )
        return seconds

    async def ask(
        self,
        call: Call,
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
        call.waits = seconds
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused: list[Refused | Denied] = []

        def refuse(why: Refused | Denied) -> None:
            refused.append(why)
            if not gone.done():
                gone.set_result(None)

        release = self._long_requests.hold(call, refuse)
        unwatch = watch(call, gone)
        try:
            found = await self._waiting.until_found(queue, seconds, ask, gone=gone, reads=reads)
            if found is not None and gone.done() and undo is not None:
                await undo(found)
                found = None
        finally:
            unwatch()
            release()
        if refused and (found is None or reads):
            raise refused[0]
        return found


def watch(call: Call, gone: asyncio.Future[None]) -> Callable[[], object]:
    """Let `gone` be done once the client has gone; call the answer to stop that."""
    return _nothing if call.source is None else call.source.watch(gone)


def _nothing() -> None:
    """Nothing was begun: it is no client that goes, but a connection that is told otherwise."""
