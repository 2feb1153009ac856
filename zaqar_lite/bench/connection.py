"""Keep-alive HTTP connections: one plays a script, as cheaply as it can, one is asked by a task.

A script is a generator: it yields the bytes of a request and is sent (status, body) of the answer.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Generator
from contextlib import suppress

Script = Generator[bytes, tuple[int, bytes], None]
_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Tally:
    """The results of all connections of a run.

    Attributes:
        messages: how many messages were moved.
        latencies: in seconds.
        refused: answers from 400 on, by status.
        last_answer: the instant of the last answer that was counted.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.latencies: list[float] = []
        self.refused: Counter[int] = Counter()
        self.last_answer = 0.0

    def count(self, latency: float, at: float) -> None:
        """Count an answer that came at the instant `at`."""
        self.latencies.append(latency)
        self.last_answer = at


class Pace:
    """When requests start: after the last answer (closed loop), or at a fixed rate (open loop)."""

    def __init__(self, rate: float | None) -> None:
        self._interval = None if rate is None else 1 / rate
        self._next = time.perf_counter()
        self._idle: deque[Connection] = deque()

    @property
    def is_open(self) -> bool:
        """Whether requests start at a rate."""
        return self._interval is not None

    def take(self, connection: "Connection") -> float | None:
        """The instant at which the connection's next request is due; None: wait to be woken."""
        now = time.perf_counter()
        if self._interval is None:
            return now
        if self._next > now:
            self._idle.append(connection)
            return None
        due = self._next
        self._next += self._interval
        return due

    async def run(self, until: float) -> None:
        """Wake idle connections as requests fall due (open loop only)."""
        while time.perf_counter() < until:
            await asyncio.sleep(0.0005)
            while self._idle and self._next <= time.perf_counter():
                self._idle.popleft().proceed()


class Connection(asyncio.Protocol):
    """Play a script: latency counts from the instant at which a request was due."""

    def __init__(self, script: Script, tally: Tally, pace: Pace, until: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._script = script
        self._tally = tally
        self._pace = pace
        self._until = until
        self._transport: asyncio.Transport | None = None
        self._request = b""
        self._buffer = b""
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the script."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio promises it
        self._transport = transport
        self._request = next(self._script)
        self.proceed()

    def proceed(self) -> None:
        """Send the next request, if it is due."""
        due = self._pace.take(self)
        if due is None:
            return
        if due >= self._until:
            self._finish()
            return
        self._due = due
        if self._transport is not None:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count an answer once it is complete, and continue the script."""
        data = self._buffer + data if self._buffer else data
        end = data.find(_END)
        if end < 0:
            self._buffer = data
            return
        status, length = _read_head(data[:end])
        if len(data) < end + 4 + length:
            self._buffer = data
            return
        self._buffer = b""
        now = time.perf_counter()
        self._tally.count(now - self._due, now)
        if status >= 400:
            self._tally.refused[status] += 1
        try:
            self._request = self._script.send((status, data[end + 4 :]))
        except StopIteration:
            self._finish()
            return
        self.proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if the server closed the connection during the run."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        if self._transport is not None:
            self._transport.close()


class StreamConnection:
    """One keep-alive connection; requests one after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> "StreamConnection":
        """Connect."""
        return cls(*await asyncio.open_connection(host, port))

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._writer.close()

    async def ask(self, request: bytes) -> tuple[int, bytes, float]:
        """Send a request; its status, its body and the instant of the answer.

        Raises:
            OSError: the server closed the connection.
        """
        self._writer.write(request)
        try:
            status, length = _read_head(await self._reader.readuntil(_END))
            body = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the server closed the connection") from None
        return status, body, time.perf_counter()


def _read_head(head: bytes) -> tuple[int, int]:
    """Return the status of an answer, and the bytes of its body."""
    head = head.lower()
    at = head.find(_LENGTH)
    length = 0 if at < 0 else int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
    return int(head[9:12]), length
