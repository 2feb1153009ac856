"""A connection as the event loop drives it, in this process: what it writes, and when."""

import asyncio
from typing import Any

import pytest
from uvicorn.server import ServerState

from tests.api.sockets import UPGRADE, parsed, request
from tests.api.test_connections import MESSAGE, POST
from tests.failing import failing
from tests.waiting import until
from zaqar_lite.api.request import Request, Response, Write
from zaqar_lite.main import create_app
from zaqar_lite.server.connections import HttpConnection, connections_of
from zaqar_lite.server.loading import load

pytestmark = pytest.mark.anyio


class Answering:
    """An application that has one answer, for the connections of this process."""

    sockets = None

    def __init__(self, result: Response) -> None:
        self._result = result

    async def answer(self, request: Request) -> Response:
        """Give the answer."""
        await request.read()
        return self._result

    def look_at(self, _: Request) -> None:
        """Answer in a task."""


async def _answered(result: Response) -> bytes:
    """What a connection writes until it ends, whose requests all have this answer."""
    app: Any = Answering(result)
    loop = asyncio.get_running_loop()
    settings = load(environment={}, overrides={"keep_alive": 1})
    protocol = connections_of(app, settings)
    server = await loop.create_server(lambda: protocol(None, ServerState()), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(request("GET", "/"))
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    return answer


class Wire(asyncio.Transport):
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_paused, self.closed = False, asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol: Any = protocol

    def get_write_buffer_size(self) -> int:
        return 0


def _connected(app: Any = None) -> tuple[HttpConnection, Wire]:
    """Make a connection to an application."""
    settings = load(environment={}, overrides={"store": "memory://"})
    wire = Wire()
    connection = connections_of(app or create_app(settings), settings)(None, ServerState())
    connection.connection_made(wire)
    return connection, wire


def _begun() -> tuple[HttpConnection, Wire]:
    """Make a connection on which a known head has come, and a part of its body."""
    app: Any = Answering(Response(200, b""))
    make = connections_of(app, load(environment={}))
    sent = request("POST", POST, MESSAGE)
    head = sent[: -len(MESSAGE)]
    parsed(head, make.heads)
    known = make.heads.get(head) or make.heads.find_like(head)
    assert known is not None
    known.reads_first, known.most = True, len(MESSAGE)
    connection, wire = make(None, ServerState()), Wire()
    connection.connection_made(wire)
    connection.data_received(sent[:-5])
    return connection, wire


async def test_a_request_whose_body_still_comes_is_answered_when_the_server_stops() -> None:
    connection, wire = _begun()
    connection.shutdown()
    assert not wire.is_closing()
    connection.data_received(MESSAGE[-5:])
    await asyncio.wait_for(wire.closed.wait(), 60)
    connection.connection_lost(None)
    assert wire.written.startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_goes_on_behind_an_unread_answer_is_not_gathered() -> None:
    connection, wire = _begun()
    connection.pause_writing()
    for _ in range(7):  # five of these are the rest of the body
        connection.data_received(b"x")
    connection.connection_lost(None)
    assert wire.is_paused


async def test_requests_that_are_sent_ahead_hold_up_nobody() -> None:
    """A few of them are answered in each turn."""
    connection, wire = _connected()
    sent, turns = 200, list[int]()
    connection.data_received(request("GET", POST) * sent)
    while sum(turns) < sent:
        turns.append(wire.written.count(b"HTTP/1.1 "))
        wire.written = b""
        await asyncio.sleep(0)
    connection.connection_lost(None)
    assert max(turns) <= 16


@pytest.mark.parametrize(("first", "answer"), [(b"\x81", b"\x81~"), (b"\x89", b"\x8a\x00")])
async def test_tens_of_thousands_of_frames_hold_up_nobody(first: bytes, answer: bytes) -> None:
    """Texts that are no requests, and pings: they are read and answered in many turns."""
    connection, wire = _connected()
    frame, frames = first + b"\x80\0\0\0\0", 10_000
    connection.data_received(request("GET", "/v2/ws", headers=UPGRADE) + frame)
    assert wire.written.startswith(b"HTTP/1.1 101 ")
    wire.protocol.data_received(frame * (frames - 1))
    turns: list[int] = []
    while sum(turns) < frames:
        turns.append(wire.written.count(answer))
        wire.written = b""
        await asyncio.sleep(0)
    wire.protocol.connection_lost(None)
    assert max(turns) < 1_000
    assert not wire.is_paused


async def test_a_socket_that_begins_behind_an_answer_is_read_on() -> None:
    """Its handshake came in two parts, before what was asked for first was answered."""
    connection, wire = _connected()
    handshake = request("GET", "/v2/ws", headers=UPGRADE)
    for part in (request("GET", "/openapi.json"), handshake[:30], handshake[30:]):
        connection.data_received(part)
    assert wire.is_paused
    await until(lambda: b"HTTP/1.1 101 " in wire.written)
    wire.protocol.connection_lost(None)
    assert not wire.is_paused


@pytest.mark.parametrize("path", ["/ui/", "/openapi.json"])
async def test_what_fails_beside_the_routes_is_answered_too(path: str) -> None:
    app = create_app(load(environment={}, overrides={"store": "memory://"}))
    app.page = app.describe = failing(LookupError(path))
    connection, wire = _connected(app)
    connection.data_received(request("GET", path))
    await until(lambda: wire.written != b"")
    connection.connection_lost(None)
    assert wire.written.startswith(b"HTTP/1.1 500 ")
    assert b"LookupError" not in wire.written


async def test_a_header_with_a_line_break_is_never_sent() -> None:
    answer = await _answered(Response(200, b"", ((b"location", b"/\r\nx: y"),)))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"x: y" not in answer


async def test_a_stream_that_fails_ends_its_connection_without_an_end() -> None:
    """Its reader would take what it has for the whole."""

    async def body(write: Write) -> None:
        await write(b"one")
        await asyncio.sleep(0)
        raise ValueError("planted")

    result = Response(200, b"", stream=body)
    answer = await _answered(result)
    assert answer.endswith(b"3\r\none\r\n")
