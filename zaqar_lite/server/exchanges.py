"""A request on one of our connections, and its answer, which is written at once."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from zaqar_lite.service.connected import Link

_CLOSE = (b"connection", b"close")
_JOINED = 65_536
"""Bytes: a larger body is not copied behind its head."""


class Signal(asyncio.Event):
    """An event for what is there by the thousand: the waiters' deque alone has 760 bytes.

    `gone` is done when it is set, so that nobody needs a task to wait for that.
    """

    gone: asyncio.Future[None] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._waiters: Any = []

    def set(self) -> None:
        """Wake all who wait."""
        super().set()
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)


class Connection(Link, Protocol):
    """What an exchange asks of its connection."""

    def is_last(self, exchange: RequestResponseCycle) -> bool:
        """Whether nothing is answered behind this exchange."""

    def discard(self) -> None:
        """Write nothing more, and close once the client had time to read."""


class HttpExchange(RequestResponseCycle):
    """uvicorn's exchange, whose answer may be given whole (`zaqar_lite.api.http.Exchange`).

    uvicorn takes an answer in two parts, and searches each header three times: a tenth of what a
    post of one message costs the server.
    """

    _default_headers: Sequence[tuple[bytes, bytes]] = ()
    _default_lines = b""

    def __init__(self, connection: Connection, *arguments: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments)  # by place: names cost a dictionary a request
        self.unsent = False
        self._connection = self.link = connection
        self._closes = False

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI event
        """Give the body, without waiting where all of it is there."""
        if (
            self.more_body
            or self.disconnected
            or self.response_complete
            or not self.message_event.is_set()
        ):
            return await super().receive()
        self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def answer(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send an answer; `headers` say how long its body is.

        Raises:
            ValueError: a header has a line break.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        self._look()
        if self.disconnected:
            return
        closes = self._closes or not self.keep_alive
        sent = [*headers, _CLOSE] if closes else headers
        own = b"".join([b"%b: %b\r\n" % header for header in sent])
        if own.count(b"\n") + own.count(b"\r") != 2 * len(sent):
            raise ValueError("a header of an answer has a line break")
        if self.default_headers is not self._default_headers:  # another list each second
            HttpExchange._default_headers = self.default_headers
            HttpExchange._default_lines = b"".join(
                [b"%b: %b\r\n" % header for header in self.default_headers]
            )
        head = b"%b%b%b\r\n" % (STATUS_LINE[status], self._default_lines, own)
        self.response_started = True
        self.waiting_for_100_continue = False
        if len(body) <= _JOINED:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)
        self.response_complete = True
        self.message_event.set()
        if closes and not self._closes:
            self.transport.close()
        self.on_response()
        if self._closes:
            self._connection.discard()

    def tell_gone(self, gone: asyncio.Future[None]) -> bool:
        """Let `gone` be done once the client has gone; False where its request is not read yet."""
        signal = self.message_event
        if self.more_body or not isinstance(signal, Signal):
            return False
        signal.gone = gone
        if self.disconnected:
            signal.set()
        return True

    async def abort(self) -> None:
        """End the connection now; whatever was not read of its answer is lost."""
        self.transport.abort()
        # The loop tells the protocol in its next round; then nobody misses the rest of the answer.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def send(self, message: Any) -> None:  # noqa: ANN401 - an ASGI event
        """Send a part of an answer; end the connection behind one that came early."""
        self._look()
        if message["type"] == "http.response.start":
            if self._closes:
                message["headers"] = [*message["headers"], _CLOSE]
            await super().send(message)
            if self._closes:
                self.keep_alive = True  # or it would close at once, with input that was not read
            return
        await super().send(message)
        if self._closes and self.response_complete:
            self._connection.discard()

    def _look(self) -> None:
        """See whether there is a reader still, and whether this is the connection's last answer."""
        # What is written to a connection that has ended is dropped without a word.
        if self.disconnected or self.transport.is_closing():
            self.unsent = True
        if not self.response_started:
            self._closes = self._connection.is_last(self)
