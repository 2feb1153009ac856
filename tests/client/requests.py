"""Stand between a client and its transport: count what it sends, or change what it is answered."""

from typing import Any

from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.client.calls import Request


class Around:
    """A transport of either client that hands on to another."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport

    def send(self, base: str, request: Request) -> Any:
        return self.transport.send(base, request)

    def close(self) -> Any:
        return self.transport.close()


class Counting(Around):
    """A transport that notes each request."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.sent: list[str] = []

    def send(self, base: str, request: Request) -> Any:
        self.sent.append(f"{request.method} {request.path}")
        return super().send(base, request)


def counted(client: Client | AsyncClient) -> list[str]:
    """Have a client's requests noted from now on."""
    client.transport = counting = Counting(client.transport)
    return counting.sent
