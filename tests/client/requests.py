"""Count what a client sends."""

from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.client.calls import Request, Response
from zaqar_lite.client.transports import AsyncTransport, Transport


class Counting:
    """A transport that notes each request."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.sent: list[str] = []

    def send(self, base: str, request: Request) -> Response:
        self.sent.append(f"{request.method} {request.path}")
        return self.transport.send(base, request)

    def close(self) -> None:
        self.transport.close()


class AsyncCounting:
    """A transport that notes each request."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport
        self.sent: list[str] = []

    async def send(self, base: str, request: Request) -> Response:
        self.sent.append(f"{request.method} {request.path}")
        return await self.transport.send(base, request)

    async def close(self) -> None:
        await self.transport.close()


def counted(client: Client) -> list[str]:
    """Have a client's requests noted from now on."""
    client.transport = counting = Counting(client.transport)
    return counting.sent


def counted_async(client: AsyncClient) -> list[str]:
    """Have a client's requests noted from now on."""
    client.transport = counting = AsyncCounting(client.transport)
    return counting.sent
