"""What every method of the async client stands on: carry out a call, with retries."""

import asyncio
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from zaqar_lite.client.dead_letters import Steps
from zaqar_lite.client.errors import BadRequest, ServerWarning, Unreachable
from zaqar_lite.client.exchange import Login, Outcome, Sleep, exchange
from zaqar_lite.client.line import Line
from zaqar_lite.client.shell import Shell
from zaqar_lite.client.transports import AiohttpTransport, AsyncTransport
from zaqar_lite.client.waiting import POLL, Waiting
from zaqar_lite.client.wire import Call

T = TypeVar("T")


class AsyncCalls(Shell):
    """Carry out the endpoints' calls; the arguments are `Shell`'s."""

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
        steps = exchange(
            call,
            headers=self._headers,
            auth=self._auth,
            retries=self._retries,
            warn=self._warn,
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
                await self._sleep(step.seconds, call.request.line)
            elif isinstance(step, Login):
                await asyncio.to_thread(self._auth.login)
            else:
                try:
                    outcome = await self.transport.send(self.url, step)
                except Unreachable as error:
                    outcome = error

    async def _sleep(self, seconds: float, line: Line | None) -> None:
        if line is None:
            await asyncio.sleep(seconds)
        else:
            await line.sleep_async(seconds)

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
            Unreachable: no answer came, or the line was hung up.
        """
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
                await self._sleep(pause, line)
            if pause is None or (line is not None and line.over):
                return found

    async def _drive(self, steps: Steps[T], cancelled: list[asyncio.CancelledError]) -> T:
        """Carry out the calls that a generator asks for, and tell it how each of them went.

        A cancellation is put into `cancelled`, where the generator sees it and comes to its end,
        and raised then: what a call under way has claimed must be given back. A second one cuts
        the call. A warning never ends it in the middle of its work.
        """
        try:
            call = next(steps)
            while True:
                running = asyncio.ensure_future(self.call(call))
                while not running.done():
                    try:
                        await asyncio.wait([running])
                    except asyncio.CancelledError as error:
                        if cancelled:
                            running.cancel()
                        cancelled.append(error)
                try:
                    outcome = running.result()
                except ServerWarning as warning:
                    warnings.warn(warning, stacklevel=4)
                    call = steps.send(warning.result)
                except BaseException as error:  # noqa: BLE001 - the generator raises it again
                    call = steps.throw(error)
                else:
                    call = steps.send(outcome)
        except StopIteration as done:
            if cancelled:
                raise cancelled[0] from None
            result: T = done.value
            return result
