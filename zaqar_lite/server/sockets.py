"""A WebSocket connection with bounds on its frames, its unread answers and its time.

It calls `zaqar_lite.api.websocket` directly: ASGI can't express that a client reads too slowly. A
connection has a task only while a frame is answered, so an idle one costs little. A frame that is
too large is passed over, so that the connection can go on: the library's parser would have to keep
it whole, and closes the connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

from websockets import http11
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from zaqar_lite.api.request import Response, request_of
from zaqar_lite.api.websocket.conversation import Conversation, SocketHost
from zaqar_lite.server.http1 import ClientConnection, ServerState

MOST_DISCARDED = 16_777_216
"""Bytes of a frame that are passed over; at a larger one the parser closes the connection."""
_WHOLE = {0x81: False, 0x82: True}
"""The first byte of a text and of a binary frame that is a message of its own."""


class Oversized(NamedTuple):
    """A frame that was passed over: how many bytes it had, and whether it was binary."""

    size: int
    binary: bool


class FrameFilter:
    """Take the frames above `largest` bytes out of what arrives on a connection.

    A message in several frames is passed on whatever its size, as is what is no frame: the parser
    bounds both by closing the connection.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._held = b""
        self._left = 0
        self._oversized: Oversized | None = None

    def split(self, data: bytes) -> Iterator[bytes | Oversized]:
        """Give what the parser shall get, and each frame that it shall not, in their order."""
        if self._held:
            data, self._held = self._held + data, b""
        start = at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                at, self._left = at + step, self._left - step
            if self._oversized is not None:
                start = at
                if not self._left:
                    yield self._oversized
                    self._oversized = None
            if self._left or at == len(data):
                break
            length = _length(data, at)
            if length is None:
                self._held = data[at:]
                break
            head, self._left = length
            if self._largest < self._left <= MOST_DISCARDED and data[at] in _WHOLE:
                if start < at:
                    yield data[start:at]
                self._oversized = Oversized(self._left, _WHOLE[data[at]])
                start = at + head
            at += head
        if start < at:
            yield data[start:at]


def _length(data: bytes, at: int) -> tuple[int, int] | None:
    """How many bytes the head of a frame has, and its payload; None while the head is cut off."""
    if len(data) < at + 2:
        return None
    masked, length = data[at + 1] & 0x80, data[at + 1] & 0x7F
    extended = {126: 2, 127: 8}.get(length, 0)
    head = 2 + extended + (4 if masked else 0)
    if len(data) < at + head:
        return None
    if extended:
        length = int.from_bytes(data[at + 2 : at + 2 + extended], "big")
    return head, length


_GOING_AWAY, _INTERNAL, _TRY_LATER, _POLICY = 1001, 1011, 1013, 1008
_MOST_UNREAD = 1_048_576
"""Bytes of notifications that may wait to be read behind an answer; with more the client is closed
as too slow."""
_PARSED, _AT_ONCE = 4_096, 16
"""Bytes that are parsed, and frames that are answered, before others have their turn."""
_PATIENCE = 5.0
"""Seconds that the client has to answer a close."""
_QUIET = 0.25
"""Seconds without input after which a client refused over TLS is assumed to have read why."""
_SWITCHING = 101
logger = logging.getLogger("zaqar_lite")
_wire_logger = logging.getLogger("zaqar_lite.wire")
_wire_logger.setLevel(logging.ERROR)
_IS_BINARY = {Opcode.TEXT: False, Opcode.BINARY: True}


class SocketProtocol(ClientConnection):
    """A connection that began as HTTP and asked to be a WebSocket.

    `sockets` opens a conversation for it. A frame has at most `largest` bytes; a larger one is
    answered 400 without being read. The server sends a ping every `interval` seconds, and closes
    the connection if nothing arrived since the last one. It also closes a client that must
    authenticate and has not done so for `silence` seconds, and one that has read nothing for that
    long.
    """

    sockets: SocketHost
    largest: int
    interval: float
    silence: float

    def __init__(self, server_state: ServerState) -> None:
        super().__init__(server_state)
        self._wire = ServerProtocol(max_size=self.largest, logger=_wire_logger)
        self._conversation: Conversation | None = None
        self._filter = FrameFilter(self.largest)
        self._unparsed = b""
        self._waiting: deque[tuple[bytes | Oversized, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._begun: bytearray | None = None
        self._binary = self._paused = False
        self._writable: asyncio.Event | None = None
        self._heard = True
        self._opened_at = 0.0
        self._unread = 0
        """How many bytes waited to be read when the client was seen to read last."""
        self._unread_since: float | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # Called by the event loop and by uvicorn.

    def data_received(self, data: bytes) -> None:
        """Parse input, and act on each frame that is complete."""
        self._heard = True
        if "quiet" in self._timers:
            self._close_when_quiet()
        if self._wire.state is State.CONNECTING:
            head, end, data = data.partition(b"\r\n\r\n")
            self._parse(head + end)
        is_parsed_later = bool(self._unparsed)
        self._unparsed += data
        if not is_parsed_later:
            self._parse_some()

    def pause_writing(self) -> None:
        """Stop reading and answering: the client does not read what it was sent."""
        self._writable = asyncio.Event()
        self._unread = self._transport.get_write_buffer_size()
        self._unread_since = self._loop.time()
        self._read(on=False)

    def resume_writing(self) -> None:
        """Go on reading and answering."""
        if self._writable is not None:
            self._writable.set()
        self._writable = self._unread_since = None
        self._heard, self._unread = True, 0
        self._read(on=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and end the conversation."""
        self._leave()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        self._unparsed = b""
        self.resume_writing()
        if self._conversation is not None and self._task is None:
            self._start(self._conversation.end())
        self._conversation = None

    def shutdown(self) -> None:
        """Close the connection, after the current answer, because the server stops."""
        self._waiting.clear()
        if self._task is None:
            self._go_away()
        else:
            self._task.add_done_callback(self._go_away)

    # Called by the conversation.

    def send(self, data: bytes, *, binary: bool) -> bool:
        """Send a frame; return whether it was sent. A client that reads too slowly is closed."""
        if self.lost or self._wire.state is not State.OPEN:
            return False
        if self._transport.get_write_buffer_size() > self._unread + _MOST_UNREAD:
            self.close(_TRY_LATER, "You read too slowly.")
            return False
        if binary:
            self._wire.send_binary(data)
        else:
            self._wire.send_text(data)
        self._flush()
        return True

    def close(self, code: int, reason: str) -> None:
        """Send a close; end the connection if the client does not answer it in time."""
        if self.lost or self._wire.state is not State.OPEN:
            return
        self._wire.send_close(code, reason)
        self._flush()
        self._end()

    def close_at(self, seconds: float | None, code: int, reason: str) -> None:
        """Close in `seconds`, or never if that is None; this replaces an earlier time."""
        if seconds is not None:
            self._after(seconds, "close_at", self.close, code, reason)
        elif (timer := self._timers.pop("close_at", None)) is not None:
            timer.cancel()

    # Internal.

    def _parse_some(self) -> None:
        """Parse a piece of the input, and the next one once other connections had their turn."""
        if self.lost:
            return
        data, self._unparsed = self._unparsed[:_PARSED], self._unparsed[_PARSED:]
        for part in self._filter.split(data):
            if not isinstance(part, Oversized):
                self._parse(part)
            elif self._wire.state is State.OPEN:
                self._wait_for_answer(part, binary=part.binary)
        self._flush()
        if self._unparsed:
            self._read(on=False)
            self._loop.call_soon(self._parse_some)
        else:
            self._read(on=True)

    def _parse(self, data: bytes) -> None:
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, http11.Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                self._take(event)

    def _shake_hands(self, request: http11.Request) -> None:
        response = self._wire.accept(request)
        refused = self._open(request) if response.status_code == _SWITCHING else None
        if refused is not None:
            headers = Headers({"Content-Type": "application/json", "Connection": "close"})
            headers["Content-Length"] = str(len(refused.text()))
            phrase = HTTPStatus(refused.status).phrase
            response = http11.Response(refused.status, phrase, headers, refused.text())
        self._wire.send_response(response)
        self._flush()
        if self._conversation is not None:
            self._opened_at = self._loop.time()
            self._after(self.interval, "ping", self._look)

    def _open(self, request: http11.Request) -> Response | None:
        """Open a conversation; if it is refused, return the answer that says why."""
        sent = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.raw_items()
        ]
        path = unquote(request.path.partition("?")[0])
        opened = self.sockets.open(self, request_of("GET", b"", b"", sent, path=path))
        if isinstance(opened, Response):
            return opened
        self._conversation = opened
        return None

    def _take(self, frame: Frame) -> None:
        if frame.opcode in _IS_BINARY:
            self._binary = _IS_BINARY[frame.opcode]
        elif frame.opcode is not Opcode.CONT:
            return  # the protocol answers pings and closes
        if self._begun is not None:
            self._begun += frame.data
        elif not frame.fin:
            self._begun = bytearray(frame.data)
        if not frame.fin:
            return
        data, self._begun = bytes(frame.data if self._begun is None else self._begun), None
        self._wait_for_answer(data, binary=self._binary)

    def _wait_for_answer(self, data: bytes | Oversized, *, binary: bool) -> None:
        self._waiting.append((data, binary))
        if self._task is None and self._conversation is not None:
            self._read(on=False)
            self._task = self._start(self._answer(self._conversation))

    async def _answer(self, conversation: Conversation) -> None:
        """Answer the waiting frames one after the other, pausing while the client does not read."""
        answered = 0
        try:
            while self._waiting:
                if self._writable is not None:
                    await self._writable.wait()
                    continue
                answered += 1
                if answered % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                    continue
                data, binary = self._waiting.popleft()
                if isinstance(data, Oversized):
                    conversation.refuse_frame(data.size, self.largest, binary=binary)
                else:
                    await conversation.answer_frame(data, binary=binary)
        except Exception:
            logger.exception("unexpected error on a WebSocket")
            self.close(_INTERNAL, "Unexpected error.")
        finally:
            self._task = None
            self._read(on=True)
            if self.lost:
                await conversation.end()

    def _look(self) -> None:
        """Ping the client; close the connection if it is gone or has not authenticated in time."""
        now = self._loop.time()
        unread = self._transport.get_write_buffer_size()
        if self._unread_since is not None and unread < self._unread:
            self._unread, self._unread_since = unread, now
        is_known = self._conversation is not None and self._conversation.is_known
        if self._unread_since is not None and now - self._unread_since > self.silence:
            self.close(_TRY_LATER, "You read too slowly.")
        elif not is_known and now - self._opened_at > self.silence:
            self.close(_POLICY, "You did not authenticate.")
        elif not self._heard and self._task is None and self._writable is None:
            self.close(_INTERNAL, "No answer to a ping.")
        elif self._wire.state is State.OPEN:
            self._heard = False
            self._wire.send_ping(b"")
            self._flush()
            self._after(self.interval, "ping", self._look)

    def _go_away(self, _: object = None) -> None:
        self.close(_GOING_AWAY, "The server is stopping.")

    def _flush(self) -> None:
        if self.lost:
            return
        for data in self._wire.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._close_transport()

    def _close_transport(self) -> None:
        """Close after what was written; with unread input the kernel would send a reset."""
        if self._wire.parser_exc is None:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
        else:  # TLS can't end one direction alone
            self._close_when_quiet()
        self._end()

    def _close_when_quiet(self) -> None:
        self._after(_QUIET, "quiet", self._transport.close)

    def _end(self) -> None:
        """Give the client some time to close."""
        self._waiting.clear()
        self._read(on=True)
        self._after(_PATIENCE, "end", self._transport.abort)

    def _read(self, *, on: bool) -> None:
        """Stop reading, or go on if nothing waits for it: input, an answer, or its reader."""
        if self.lost or self._transport.is_closing() or self._paused is not on:
            return
        is_closing = self._wire.state is not State.OPEN  # then the client's close is waited for
        if on and (self._unparsed or (not is_closing and (self._task or self._writable))):
            return
        self._paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _after(self, seconds: float, name: str, act: Callable[..., object], *given: object) -> None:
        """Call `act` in `seconds`; this replaces an earlier call under the same name."""
        before = self._timers.get(name)
        if before is not None:
            before.cancel()
        self._timers[name] = self._loop.call_later(seconds, act, *given)
