"""A proxy before the server that loses answers, or holds requests until who asked is dead."""

import asyncio
import itertools
import re
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

Rule = Callable[[int], bool]
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class LosingProxy:
    """Pass requests on, in a thread of its own, with a connection to the server for each.

    `lose` tells of the nth POST (from 0) whether its answer is lost: the server does what was
    asked, nobody hears. `hold` tells of the nth DELETE whether it stops here, for ever; `held` is
    set then.
    """

    def __init__(self, upstream: str) -> None:
        self.lose: Rule = lambda _: False
        self.hold: Rule = lambda _: False
        self.held = threading.Event()
        self.posts = 0
        self.lost = 0
        self.url = ""
        parts = urlsplit(upstream)
        self._upstream = parts.hostname, parts.port
        self._numbers = itertools.count()
        self._deletes = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        try:
            while await self._pass_on(reader, writer, up_reader, up_writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # one of the two sides is gone
        finally:
            writer.close()
            up_writer.close()
            self._connections.discard(task)

    async def _pass_on(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        up_reader: StreamReader,
        up_writer: StreamWriter,
    ) -> bool:
        """Pass one request and its answer on; False where the connection ends with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        method = head.split(b" ", 1)[0]
        if method == b"DELETE" and self.hold(next(self._deletes)):
            self.held.set()
            await reader.read(1)  # until the other side is gone
            return False
        up_writer.write(head + await _body(reader, head))
        answer = await up_reader.readuntil(b"\r\n\r\n")
        answer += await _body(up_reader, answer)
        if method == b"POST":
            number = next(self._numbers)
            self.posts = number + 1
            if self.lose(number):
                self.lost += 1
                return False
        writer.write(answer)
        return True

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(self._server), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _body(reader: StreamReader, head: bytes) -> bytes:
    length = _LENGTH.search(head)
    return await reader.readexactly(int(length[1])) if length else b""
