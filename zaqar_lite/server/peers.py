"""What a connection knows of its client, and of the server that accepted it."""

import asyncio
from typing import Any, Protocol


class ServerState(Protocol):
    """What all connections of a server share; uvicorn makes it."""

    total_requests: int
    connections: set[Any]
    """Each of them has a method `shutdown`, which is called when the server stops."""
    tasks: set[asyncio.Task[None]]
    """A server that stops waits for these."""
    default_headers: list[tuple[bytes, bytes]]
    """The headers of every answer: the date. It is another list when they change."""


def address_of(transport: asyncio.BaseTransport) -> str:
    """Where a connection comes from; empty for a socket that has no address."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def names_of_peer(transport: asyncio.BaseTransport) -> frozenset[str]:
    """The names that the client's certificate is for, if it has shown one.

    They are host names and URIs, not its common name.
    """
    secured = transport.get_extra_info("ssl_object")
    certificate = None if secured is None else secured.getpeercert()
    found = (certificate or {}).get("subjectAltName", ())
    return frozenset(name for kind, name in found if kind in ("DNS", "URI"))
