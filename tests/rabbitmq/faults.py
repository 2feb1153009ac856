"""A proxy in front of a real server that refuses, cuts or holds some of the requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit


class Fault(Enum):
    """What happens to a request."""

    NONE = "passed on"
    BUSY = "503 with Retry-After, never passed on"
    THROTTLED = "429, never passed on"
    FORBIDDEN = "403, never passed on"
    MISSING = "404, never passed on"
    CUT = "passed on, the answer is lost"
    HELD = "passed on when `release` is set"


REFUSALS = {
    Fault.BUSY: b"503 Service Unavailable",
    Fault.THROTTLED: b"429 Too Many Requests",
    Fault.FORBIDDEN: b"403 Forbidden",
    Fault.MISSING: b"404 Not Found",
}


@dataclass
class FaultyProxy:
    """`choose` is asked for every request; requests are counted by fault."""

    upstream: str
    choose: Callable[[], Fault]
    release: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Fault] = field(default_factory=list)
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, one request: every answer ends it."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
            }
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
            fault = self.choose()
            self.seen.append(fault)
            if fault in REFUSALS:
                writer.write(
                    b"HTTP/1.1 " + REFUSALS[fault] + b"\r\nRetry-After: 0\r\nContent-Length: 2\r\n"
                    b"Connection: close\r\n\r\n{}"
                )
            else:
                if fault is Fault.HELD:
                    await self.release.wait()
                answer = await self._pass_on(head, body)
                if fault is not Fault.CUT:
                    writer.write(answer)
            await writer.drain()
        except (EOFError, OSError):
            pass  # the other side has gone
        finally:
            writer.close()

    async def _pass_on(self, head: bytes, body: bytes) -> bytes:
        where = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
        answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def faulty(upstream: str, choose: Callable[[], Fault]) -> AsyncIterator[FaultyProxy]:
    """Run a proxy on a free port."""
    proxy = FaultyProxy(upstream, choose)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
