"""What every method of the async client stands on: it takes the steps on an event loop."""

from types import TracebackType
from typing import Self, TypeVar

from zaqar_lite.client.asynchronous.runtime import login, sleep, to_the_end, wait_for
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call, Login, Request, Sleep, Step, Steps, ToTheEnd
from zaqar_lite.client.errors import Unreachable
from zaqar_lite.client.methods import Async
from zaqar_lite.client.transports import AsyncTransport

T = TypeVar("T")


class AsyncCalls(BaseClient, Async):
    """Take the steps of methods."""

    transport: AsyncTransport

    def _open(self) -> None:
        # Only here: a program with the other client alone need not import this library.
        from zaqar_lite.client.aiohttp_transport import AiohttpTransport  # noqa: PLC0415

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
        """Make a call of an endpoint, with retries."""
        return await self._run(self._exchange(call))

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a method; return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await self._take(step)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _take(self, step: Step) -> object:
        """Take a step; return its outcome."""
        if isinstance(step, Request):
            try:
                return await self.transport.send(self.url, step)
            except Unreachable as error:
                return error
        if isinstance(step, ToTheEnd):
            return await to_the_end(self._run, step)
        if isinstance(step, Sleep):
            await sleep(step.seconds, step.connection)
        elif isinstance(step, Login):
            await login(self._auth)
        else:
            await wait_for(step)
        return None
