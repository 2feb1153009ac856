"""Servers of the tests' own: a proxy that throws an answer away, and one with one answer."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import bson

from tests.drivers.mongodb.commands import COUNTED, is_heartbeat, name_of

_HEADER = struct.Struct("<iiii")
_MESSAGE = 2013
"""The operation code of a command and of its answer."""


class LossyProxy:
    """Forward everything; of the commands that cost something, lose the answer of one."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._left: int | None = None
        self.lost: str | None = None
        self.serving: set[asyncio.Task[None]] = set()

    @contextmanager
    def losing(self, number: int) -> Iterator[None]:
        """Lose the answer of the command of this number from now on, from 1, and only that."""
        self._left, self.lost = number, None
        yield
        self._left = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client; a lost answer ends it."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                request = await _read(reader)
                up_writer.write(request)
                answer = await _read(up_reader)
                if self._is_lost(request):
                    break
                writer.write(answer)
        for each in (writer, up_writer):
            each.close()
            with suppress(OSError):
                await each.wait_closed()

    def _is_lost(self, request: bytes) -> bool:
        command = _command(request)
        name = name_of(command) if command else None
        if name not in COUNTED or self._left is None or is_heartbeat(command):
            return False
        self._left -= 1
        if self._left:
            return False
        self._left, self.lost = None, name
        return True


@asynccontextmanager
async def lossy(url: str) -> AsyncIterator[tuple[LossyProxy, str]]:
    """A proxy before the server of a URL, and the URL by way of it."""
    parts = urlsplit(url)
    proxy = LossyProxy(parts.hostname or "", parts.port or 27017)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy, f"mongodb://127.0.0.1:{port}/?directConnection=true"
        for task in proxy.serving:
            task.cancel()
        await asyncio.gather(*proxy.serving, return_exceptions=True)


@asynccontextmanager
async def answering(document: bytes) -> AsyncIterator[int]:
    """A server that answers whatever it is asked with one document; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                _, number, _, code = _HEADER.unpack((await _read(reader))[: _HEADER.size])
                if code == _MESSAGE:
                    answer, code = struct.pack("<iB", 0, 0) + document, _MESSAGE
                else:  # the greeting in its old form
                    answer, code = struct.pack("<iqii", 8, 0, 0, 1) + document, 1
                writer.write(_HEADER.pack(_HEADER.size + len(answer), 0, number, code) + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _read(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_HEADER.size)
    return head + await reader.readexactly(_HEADER.unpack(head)[0] - _HEADER.size)


def _command(request: bytes) -> dict[str, Any]:
    """The document of a command; empty for what is none."""
    if _HEADER.unpack(request[: _HEADER.size])[3] != _MESSAGE:
        return {}
    body = request[_HEADER.size + 5 :]  # behind the flags and the kind of the first section
    (size,) = struct.unpack_from("<i", body)
    return bson.decode(body[:size])
