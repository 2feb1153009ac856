"""What every method of the async client stands on: carry out a call, with retries."""

import math
import time
from collections.abc import AsyncIterator, Callable
from numbers import Real
from types import TracebackType
from typing import Self, TypeVar

from zaqar_lite.client.arguments import takes
from zaqar_lite.client.asynchronous.runtime import login, sleep
from zaqar_lite.client.endpoints import queues
from zaqar_lite.client.errors import BadRequest, Refused, Unreachable
from zaqar_lite.client.exchange import Login, Outcome, Sleep
from zaqar_lite.client.line import Line
from zaqar_lite.client.shell import Shell
from zaqar_lite.client.transports import AiohttpTransport, AsyncTransport
from zaqar_lite.client.waiting import POLL, Waiting
from zaqar_lite.client.wire import Call, Page

T = TypeVar("T")
LIMIT_KEPT = 60.0
"""Seconds for which the server's longest delay is known; its operator may change it."""


class AsyncCalls(Shell):
    """Carry out the calls of the endpoints."""

    transport: AsyncTransport

    def _open(self) -> None:
        self.transport = AiohttpTransport(
            timeout=self._timeout, connections=self._connections, ssl_context=self._ssl_context
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def call(self, call: Call[T]) -> T:
        """Carry out an endpoint's call, with retries."""
        steps = (
            self._exchange(call)
            if self.tracing is None
            else self.tracing.exchange(call, self._exchange)
        )
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                result: T = done.value
                return result
            outcome = None
            if isinstance(step, Sleep):
                await sleep(step.seconds, call.request.line)
            elif isinstance(step, Login):
                await login(self._auth)
            else:
                try:
                    outcome = await self.transport.send(self.url, step)
                except Unreachable as error:
                    outcome = error

    async def learn_delay(self) -> None:
        """Learn the server's longest delay, before a message with `deliver_at` is encoded.

        It is asked for at most once in `LIMIT_KEPT` seconds. A server that does not tell it
        refuses by itself what is too far away.
        """
        now = time.monotonic()
        if now < self._limit_until:
            return
        try:
            self.longest_delay = await self.call(queues.longest_delay())
        except Refused:
            self.longest_delay = math.inf
        self._limit_until = now + LIMIT_KEPT

    async def _items(self, list_page: Callable[[str | None], Call[Page[T]]]) -> AsyncIterator[T]:
        """Yield the entries of a listing page by page; `list_page` gets each page's marker."""
        marker: str | None = None
        while True:
            page = await self.call(list_page(marker))
            for item in page.items:
                yield item
            marker = page.marker
            if marker is None:
                return

    async def _until_found(
        self,
        make: Callable[..., Call[T]],
        seconds: float,
        *,
        poll: float = POLL,
        line: Line | None = None,
    ) -> T:
        """Make calls, each told how long to `wait`, until one finds something or time is over.

        Raises:
            TypeError: `seconds` or `poll` is not a number.
            Unreachable: no answer came, or the line was hung up.
        """
        takes("wait", seconds, Real)
        takes("poll", poll, Real)
        waiting = Waiting(seconds, longest=self.longest_wait, poll=poll)
        while True:
            if line is not None:
                line.asked_at = time.monotonic()
            try:
                found = await self.call(make(wait=waiting.next()))
            except BadRequest as error:
                if not waiting.shorten(error):
                    raise
                self.longest_wait = waiting.longest
                continue
            pause = None if found else waiting.pause()
            if pause is not None:
                await sleep(pause, line)
            if pause is None or (line is not None and line.over):
                return found
