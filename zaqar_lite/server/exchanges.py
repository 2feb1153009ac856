"""A request on one connection of the server, and its answer, which is written in one call."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from zaqar_lite.service.quotas.connected import Link

_CLOSE = (b"connection", b"close")
_JOINED = 65_536
"""Bytes of a body up to which head and body are joined and written together."""


def _do_nothing() -> None:
    """Take the place of a callback that is needed no more."""


class Signal(asyncio.Event):
    """An event without the deque of asyncio's own, which has 760 bytes: there are thousands.

    Setting the event also completes `gone`, so no task has to wait for the event.
    """

    gone: asyncio.Future[None] | None = None

    def __init__(self) -> None:
        self._value, self._waiters = False, []  # type: ignore[assignment]

    def set(self) -> None:
        """Set the event, wake its waiters and complete `gone`."""
        super().set()
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)


class Connection(Link, Protocol):
    """What an exchange needs of its connection."""

    def is_last(self, exchange: RequestResponseCycle) -> bool:
        """Whether this is the last answer on the connection: its request's body was not read."""

    def discard(self) -> None:
        """Write nothing more, and close after the client had time to read the answer."""

    def go_on(self, body: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Write an answer in a task, for which the server's end waits as for a request."""


class HttpExchange(RequestResponseCycle):
    """uvicorn's exchange, with a method that sends a whole answer (`zaqar_lite.api.http.Exchange`).

    uvicorn takes an answer in two parts and searches each header three times. That was a tenth of
    what posting one message costs the server.
    """

    _default_headers: Sequence[tuple[bytes, bytes]] = ()
    _default_lines = b""

    # As with the connections: 30 attributes are what instances may have without a dictionary each.
    __slots__ = ("_closes", "_connection", "_streams", "link", "unsent")

    def __init__(self, connection: Connection, *arguments: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments)  # by position: keyword arguments cost a dictionary per request
        self.unsent = False
        self._connection = self.link = connection
        self._closes = self._streams = False

    async def run_asgi(self, app: Any) -> None:  # noqa: ANN401 - an ASGI application
        """Run the application; a stream that it began goes on after it has returned."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as exc:
            self.logger.error("Exception in ASGI application\n", exc_info=exc)
            if self.response_started:
                self.transport.close()
            else:
                await self.send_500_response()
        finally:
            if not self._streams:
                self.on_response = _do_nothing  # it knows the connection, which knows this

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI event
        """Return the body, without waiting if all of it has arrived."""
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
        """Send a whole answer; `headers` include the length of `body`.

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
        self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not (self._closes or self.keep_alive):
            self.transport.close()
        self.on_response()

    async def stream(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: Coroutine[Any, Any, None],
        ended: Callable[[], None],
    ) -> None:
        """Send the head of an answer and let a task run `body`, which writes the rest.

        `ended` is called when that task has ended.
        """
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        self._streams = True
        self._connection.go_on(body).add_done_callback(partial(self._end_stream, ended))

    def _end_stream(self, ended: Callable[[], None], body: asyncio.Task[None]) -> None:
        ended()
        if body.cancelled():  # the server stops, and can't wait for a slow reader
            self.transport.abort()
        elif (error := body.exception()) is not None:
            self.logger.error("Exception in a stream\n", exc_info=error)
            self.transport.close()
        elif not self.disconnected:
            self.transport.write(b"0\r\n\r\n")
            self._complete()
        self.on_response = _do_nothing

    async def write(self, part: bytes) -> None:
        """Write a part of a stream, after waiting until the connection has room for it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if part and not self.disconnected:  # an empty part would be the end
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def tell_gone(self, gone: asyncio.Future[None]) -> bool:
        """Complete `gone` when the client has gone; False if its request was not read whole yet."""
        signal = self.message_event
        if self.more_body or not isinstance(signal, Signal):
            return False
        signal.gone = gone
        if self.disconnected:
            signal.set()
        return True

    async def send(self, message: Any) -> None:  # noqa: ANN401 - an ASGI event
        """Send a part of an answer; the connection ends after the last one."""
        self._look()
        if message["type"] == "http.response.start":
            if self._closes:
                message["headers"] = [*message["headers"], _CLOSE]
            await super().send(message)
            if self._closes:
                self.keep_alive = True  # or it would close at once, with input that was not read
            return
        await super().send(message)

    def _look(self) -> None:
        """Check whether the client is still connected, and whether this is the last answer."""
        # What is written to a connection that has ended is dropped without a word.
        if self.disconnected or self.transport.is_closing():
            self.unsent = True
        if not self.response_started:
            self._closes = self._connection.is_last(self)
            if self._closes:
                self.on_response = self._connection.discard
