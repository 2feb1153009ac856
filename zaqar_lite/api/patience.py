"""Requests that wait for messages: the `wait` parameter, and a client that goes meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from zaqar_lite.api import query
from zaqar_lite.api.http import HttpError, Request
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.waiting import Waiting

T = TypeVar("T")


class Patience:
    """Ask again until there is an answer, the time is over, or the client has gone."""

    def __init__(self, waiting: Waiting, *, longest: int) -> None:
        self._waiting = waiting
        self._longest = longest

    def seconds(self, found: dict[str, list[str]]) -> int:
        """How long a request wants to wait; 0 when it does not.

        Raises:
            HttpError: 400, out of range.
        """
        seconds = query.whole(found, "wait", 0)
        if not 0 <= seconds <= self._longest:
            raise HttpError(
                400,
                "Invalid parameter",
                f"'wait' must be between 0 and {self._longest} seconds; it is {seconds}.",
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

        `undo` takes back an answer whose client went while it was made.

        Raises:
            TooMany: too many requests wait already.
        """
        if not seconds:
            return await ask()
        request.waits = seconds
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with watched(request, gone):
            found = await self._waiting.until_found(queue, seconds, ask, gone=gone, reads=reads)
            if found is not None and gone.done() and undo is not None:
                await undo(found)
                return None
            return found


@asynccontextmanager
async def watched(request: Request, gone: asyncio.Future[None]) -> AsyncIterator[None]:
    """Let `gone` be done once the client has closed its connection."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        if not gone.done():
            gone.set_result(None)

    watching = asyncio.create_task(watch(), name="watch client")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
