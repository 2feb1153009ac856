"""Measure what an idle connection costs: `python -m tests.measure_sockets [COUNT] [KIND]`.

KIND is `socket` (a WebSocket that has sent one frame and read its answer), `stream` (of events of a
queue that holds nothing) or `http` (a request that was answered). The server's resident memory is
compared with that before, and its processor time while nothing is said but pings.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.server import ServerProcess

HANDSHAKE = (
    b"GET /v2/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
ASKED = (
    b'{"action": "queue_list", "headers": {"Client-ID": "3381af922b9e11e3b19171861300734c", '
    b'"X-Project-ID": "p"}, "body": {}}'
)
FRAME = b"\x81\xfe" + len(ASKED).to_bytes(2, "big") + bytes(4) + ASKED
REQUEST = (
    b"GET /v2/queues/q%b HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Project-ID: p\r\n"
    b"Client-ID: 3381af922b9e11e3b19171861300734c\r\n\r\n"
)
_IDLE = 25.0


def resident(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def seconds(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def open_one(port: int, kind: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and have its first request or frame answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
    if kind == "socket":
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(FRAME)
        await reader.readuntil(b'"status":200}}')
    else:
        writer.write(REQUEST % (b"/events" if kind == "stream" else b""))
        await reader.readuntil(b"id: " if kind == "stream" else b"}")
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


async def measure(server: ServerProcess, count: int, kind: str) -> None:
    """Open that many connections, and tell what they cost."""
    async with opened(server, count, kind) as each:
        begun, used = time.monotonic(), seconds(server.pid)
        await asyncio.sleep(_IDLE)
        share = (seconds(server.pid) - used) / (time.monotonic() - begun)
        print(f"{count} of {kind}: {each:.1f} KiB each, {share:.2%} of a core while idle")


def bounds(count: int) -> dict[str, str]:
    """The settings of a server that takes so many."""
    names = ("MAX_CONNECTIONS", "MAX_WAITERS_PER_PROJECT")
    return {f"ZAQAR_LITE_{name}": str(count + 100) for name in names}


def main() -> None:
    """Measure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    kind = sys.argv[2] if len(sys.argv) > 2 else "socket"
    with ServerProcess("memory://", env=bounds(count)) as server:
        asyncio.run(measure(server, count, kind))


if __name__ == "__main__":
    main()
