"""How fast posts reach a subscriber: the scenarios `webhook` and `webhook20`.

A receiver of the bench's own is subscribed to the queue. Each connection posts, waits until the
receiver has all messages of the post, and posts again; so many posts are under way at a time. A
latency is the time from the answer to the post to the receiver's request, 0 where that came first.
The server must be allowed to call the receiver (`ZAQAR_LITE_DELIVERY_ALLOWED=127.0.0.0/8`).
"""

import asyncio
import json
import re
import time
from collections.abc import Callable

from zaqar_lite.bench.connection import Tally
from zaqar_lite.bench.scenarios import Target, message_body

_ID = re.compile(rb"webhook-id: ?msg_(\w+)", re.IGNORECASE)
_LENGTH = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_PATIENCE = 10.0
"""Seconds that a message may take to arrive."""


async def measure(
    target: Target, connections: int, tally: Tally, *, batch: int, until: float
) -> None:
    """Post and receive until the instant `until`; the latencies go into `tally`.

    Raises:
        OSError: the server closed a connection, or delivers nothing.
    """
    arrivals = _Arrivals(tally)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Receiver(arrivals.arrived), target.host, 0)
    port = server.sockets[0].getsockname()[1]
    line = await target.connect()
    document = json.dumps({"subscriber": f"http://{target.host}:{port}/"}).encode()
    status, _, _ = await line.ask(target.request("POST", "/subscriptions", document))
    line.close()
    try:
        if status != 201:
            raise ConnectionError(f"the subscription was answered {status}")
        request = target.request("POST", "/messages", message_body(batch))
        await asyncio.gather(*(arrivals.post(target, request, until) for _ in range(connections)))
    finally:
        server.close()


class _Arrivals:
    """Matches what was posted with what arrived."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._arrived: dict[bytes, float] = {}
        self._awaited: dict[bytes, asyncio.Future[float]] = {}

    def arrived(self, name: bytes) -> None:
        """Note that a message arrived; if it is repeated, the first time counts."""
        at = time.perf_counter()
        awaited = self._awaited.pop(name, None)
        if awaited is None:
            self._arrived[name] = at
        elif not awaited.done():
            awaited.set_result(at)

    async def post(self, target: Target, request: bytes, until: float) -> None:
        """Post, wait for all of it, and again."""
        line = await target.connect()
        loop = asyncio.get_running_loop()
        while time.perf_counter() < until:
            status, body, posted_at = await line.ask(target.keyed(request))
            if status != 201:
                self._tally.refused[status] += 1
                continue
            for href in json.loads(body)["resources"]:
                name = href.rsplit("/", 1)[1].encode()
                at = self._arrived.pop(name, None)
                if at is None:
                    self._awaited[name] = awaited = loop.create_future()
                    try:
                        async with asyncio.timeout(_PATIENCE):
                            at = await awaited
                    except TimeoutError:
                        raise ConnectionError(
                            "a message did not arrive: may the server call this machine "
                            "(delivery_allowed)?"
                        ) from None
                self._tally.count(max(0.0, at - posted_at), at)
                self._tally.messages += 1
        line.close()


class Receiver(asyncio.Protocol):
    """Answers every request 204, and reports the message's id."""

    def __init__(self, arrived: Callable[[bytes], None]) -> None:
        self._arrived = arrived
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection's transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio promises it
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle the requests that are complete."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            length = _LENGTH.search(head)
            size = end + 4 + (int(length.group(1)) if length else 0)
            if len(self._buffer) < size:
                return
            self._buffer = self._buffer[size:]
            self.transport.write(_ANSWER)
            name = _ID.search(head)
            if name is not None:
                self._arrived(name.group(1))
