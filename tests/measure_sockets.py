"""Measure what an idle WebSocket costs: `python -m tests.measure_sockets [COUNT]`.

Each socket has sent one frame and read its answer; then the server's resident memory is compared
with that before, and its processor time while nothing is said but pings.
"""

import asyncio
import sys
import time
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
_IDLE = 25.0


def resident(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def seconds(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def open_socket(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a WebSocket and have one frame answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
    writer.write(HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(FRAME)
    await reader.readuntil(b'"status":200}}')
    return reader, writer


async def measure(server: ServerProcess, count: int) -> None:
    """Open that many sockets, and tell what they cost."""
    warm = [await open_socket(server.port) for _ in range(20)]
    before = resident(server.pid)
    opened = [await open_socket(server.port) for _ in range(count)]
    each = (resident(server.pid) - before) / count / 1024
    begun, used = time.monotonic(), seconds(server.pid)
    await asyncio.sleep(_IDLE)
    share = (seconds(server.pid) - used) / (time.monotonic() - begun)
    print(f"{count} sockets: {each:.1f} KiB each, {share:.2%} of a core while idle")
    for _, writer in (*warm, *opened):
        writer.close()


def main() -> None:
    """Measure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    env = {"ZAQAR_LITE_MAX_CONNECTIONS": str(count + 100)}
    with ServerProcess("memory://", env=env) as server:
        asyncio.run(measure(server, count))


if __name__ == "__main__":
    main()
