"""A real HTTP receiver on a free loopback port, that answers as a test tells it to."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from aiohttp import web

Answer = Callable[[web.Request, int], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server on a free loopback port that answers by itself, byte for byte; its URL."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


class Received:
    """One request as it came."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.path = request.path
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        self.body = body
        self.at = asyncio.get_running_loop().time()

    @property
    def document(self) -> Any:
        """Its body as JSON."""
        return json.loads(self.body)


class Receiver:
    """An HTTP server whose answers are statuses in turn (the last one for good), or a function."""

    def __init__(self, *statuses: int, answer: Answer | None = None) -> None:
        self.received: list[Received] = []
        self.statuses = list(statuses or (204,))
        self._answer = answer
        self._came = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=4_194_304)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def wait(self, count: int, seconds: float = 20) -> list[Received]:
        """Wait until so many requests have come; answer all that have."""
        async with asyncio.timeout(seconds), self._came:
            await self._came.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def wait_for(self, *bodies: Any, seconds: float = 60) -> None:
        """Wait until messages of these bodies have come, in whatever order and however often."""
        async with asyncio.timeout(seconds), self._came:
            await self._came.wait_for(lambda: all(body in self.bodies for body in bodies))

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the messages that have come."""
        return [one.document.get("body") for one in self.received]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        one = Received(request, await request.read())
        async with self._came:
            self.received.append(one)
            self._came.notify_all()
        number = len(self.received) - 1
        if self._answer is not None:
            return await self._answer(request, number)
        status = self.statuses[min(number, len(self.statuses) - 1)]
        return web.Response(status=status, text=f"answer {number}")
