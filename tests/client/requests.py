"""Count what a client sends."""

from typing import Any

from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.client.calls import Request


class Counting:
    """A transport of either client that notes each request."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.sent: list[str] = []

    def send(self, base: str, request: Request) -> Any:
        self.sent.append(f"{request.method} {request.path}")
        return self.transport.send(base, request)

    def close(self) -> Any:
        return self.transport.close()


def counted(client: Client | AsyncClient) -> list[str]:
    """Have a client's requests noted from now on."""
    client.transport = counting = Counting(client.transport)
    return counting.sent
