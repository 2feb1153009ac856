"""Idle connections to a server, and what memory each of them costs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.api.sockets import UPGRADE, request
from tests.server import ServerProcess

HANDSHAKE = request("GET", "/v2/ws", headers=UPGRADE)
ASKED = (
    b'{"action": "queue_list", "headers": {"Client-ID": "3381af922b9e11e3b19171861300734c", '
    b'"X-Project-ID": "p"}, "body": {}}'
)
FRAME = b"\x81\xfe" + len(ASKED).to_bytes(2, "big") + bytes(4) + ASKED
REQUEST = request("GET", "/v2/queues/q/events")


def resident(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def open_one(port: int, kind: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and have its first request or frame answered.

    `kind` is `socket` (a WebSocket) or `stream` (of events of a queue that holds nothing).
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
    if kind == "socket":
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(FRAME)
        await reader.readuntil(b'"status":200}}')
    else:
        writer.write(REQUEST)
        await reader.readuntil(b"id: ")
    return reader, writer


@asynccontextmanager
async def opened(server: ServerProcess, count: int, kind: str) -> AsyncIterator[float]:
    """Have that many connections open: how much more memory each costs, in KiB."""
    warm = [await open_one(server.port, kind) for _ in range(20)]
    before = resident(server.pid)
    connections = [await open_one(server.port, kind) for _ in range(count)]
    try:
        yield (resident(server.pid) - before) / count / 1024
    finally:
        writers = [writer for _, writer in (*warm, *connections)]
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers))
