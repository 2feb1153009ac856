"""Frames that are no requests, and connections that are none of ours."""

import contextlib
import itertools
import json
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from websockets import Origin
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.conftest import CLIENT_ID, running
from tests.api.sockets import SENDER, UPGRADE, Raw, established
from tests.api.sockets import Answer as HttpAnswer
from tests.api.websocket.talk import Talk
from tests.server import ServerProcess
from zaqar_lite.api.request import request_of
from zaqar_lite.api.websocket.conversation import Conversation
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.server.sockets import MOST_DISCARDED

UNREAD: dict[str, Any] = {"action": None, "body": {}, "headers": {}, "api": "v2"}


def upgrade(raw: Raw, **headers: str) -> HttpAnswer:
    """Ask for a socket; answer what is said to that."""
    return raw.call("GET", "/v2/ws", b"", **{**UPGRADE, **headers})


def send_frame(raw: Raw, action: str, **body: Any) -> None:
    """Send a frame on a socket that `upgrade` has opened."""
    text = json.dumps({"action": action, "headers": SENDER, "body": body}).encode()
    raw.send(b"\x81\xfe%b\0\0\0\0%b" % (struct.pack("!H", len(text)), text))


def fill(raw: Raw) -> None:
    """Post more than the kernel's buffers hold, of which one page is 10 MB."""
    body = json.dumps({"messages": [{"body": "x" * 250_000}]}).encode()
    for _ in range(40):
        assert raw.call("POST", "/v2/queues/q/messages", body).status == 201


def test_what_is_no_request_is_told_so(talk: Talk) -> None:
    form: Any = msgspec.msgpack.encode if talk.binary else json.dumps

    def refuse(frame: Any, error: str, request: Any = None) -> None:
        talk.socket.send(frame)
        answer = talk.answer()
        assert (answer.status, error in answer.body["error"]) == (400, True), (frame, answer)
        assert request is None or answer.request == request

    kind = "binary" if talk.binary else "text"
    for wrong in (b"", b"\xc1", b"\x82") if talk.binary else ("", "{", '{"action": NaN}'):
        refuse(wrong, f"Can't decode {kind}", UNREAD)
    others: list[Any] = [[], 1, "text", None, True]
    for no_object in others:
        refuse(form(no_object), "Unexpected body type. Expected dict", UNREAD)
    sent = {"action": "queue_list", "headers": talk.headers, "body": {}}
    for action in ("queue_explode", None, 1, ["queue_list"], {"a": 1}):
        refuse(form({**sent, "action": action}), f"{action} is not a valid action")
    for name, value in itertools.product(("headers", "body"), ([], 1, "x")):
        refuse(form({**sent, name: value}), "Schema validation failed.")
    assert talk.ask("ping_node").status == 204


def test_what_is_nested_deeply_is_answered(talk: Talk) -> None:
    for deep in (400, 5_000, 100_000):
        whole = b"\x91" * deep + b"\x90" if talk.binary else "[" * deep + "]" * deep
        talk.socket.send(whole)
        assert talk.answer().status == 400
    for field, deep in itertools.product(("action", "headers", "body"), (300, 900, 1_000)):
        sent: dict[str, Any] = {"action": "queue_get", "headers": talk.headers}
        sent["body"] = {"queue_name": "q"}
        sent[field] = "?" if field == "action" else {**sent[field], "X-Auth-Token": "?"}
        if talk.binary:
            nested = b"\x91" * deep + b"\x90"
            talk.socket.send(msgspec.msgpack.encode(sent).replace(b"\xa1?", nested))
        else:
            talk.socket.send(json.dumps(sent).replace('"?"', "[" * deep + "]" * deep))
        assert talk.answer().status in (200, 400)
    assert talk.ask("ping_node").status == 204


@pytest.mark.parametrize(
    "body", [b"bytes", float("nan"), {1: 2}, msgspec.msgpack.Ext(5, b"x"), 2**64 - 1]
)
def test_a_binary_body_that_json_has_no_form_for_is_refused(
    server: ServerProcess, body: Any
) -> None:
    with Talk(server, binary=True) as talk:
        answer = talk.ask("message_post", queue_name="q", messages=[{"body": body}])
        assert answer.status == 400
        assert talk.ask("message_list", queue_name="q", echo=True).body == {"messages": []}


class Kept:
    """A connection that keeps what is sent on it."""

    project, lost, address = "", False, ""
    peer_names: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.on_lost: Callable[[], None] = self.sent.clear
        self.is_open = True

    def send(self, data: bytes, *, binary: bool) -> bool:
        """Keep a frame."""
        self.sent.append(data)
        return self.is_open

    def close(self, code: int, reason: str) -> None:
        """Nobody closes it."""
        raise AssertionError(code, reason)

    def close_at(self, seconds: float | None, code: int, reason: str) -> None:
        """Nobody logs in."""
        raise AssertionError(seconds, code, reason)


@pytest.fixture
async def kept() -> AsyncIterator[tuple[Kept, Conversation]]:
    """A conversation in this process, and the connection that keeps what it sends."""
    app = create_app(load(environment={}, overrides={"store": "memory://"}))
    async with running(app):
        connection = Kept()
        conversation = app.sockets.open(connection, request_of("GET", b"/v2/ws", b"", ()))
        assert isinstance(conversation, Conversation)
        yield connection, conversation


ASKED = {"headers": {"Client-ID": CLIENT_ID, "X-Project-ID": "p"}}


@pytest.mark.anyio
async def test_a_claim_whose_answer_is_not_sent_is_given_back(
    kept: tuple[Kept, Conversation],
) -> None:
    connection, conversation = kept

    async def ask(action: str, **body: Any) -> Any:
        asked = {**ASKED, "action": action, "body": {"queue_name": "q", **body}}
        await conversation.answer_frame(msgspec.json.encode(asked), binary=False)
        return json.loads(connection.sent[-1])["body"]

    await ask("message_post", messages=[{"body": 1}])
    connection.is_open = False  # it is being closed: because its login has ended, say
    assert (await ask("claim_create"))["claim_id"] is not None
    connection.is_open = True
    assert len((await ask("claim_create"))["messages"]) == 1


@pytest.mark.parametrize("size", [330_000, 6_553_600, MOST_DISCARDED])
@pytest.mark.parametrize("binary", [False, True])
def test_a_frame_that_is_too_large_is_refused_and_the_connection_goes_on(
    server: ServerProcess, size: int, binary: bool
) -> None:
    with Talk(server) as talk:
        for _ in range(2):
            talk.socket.send(b"x" * size if binary else "x" * size)
            data = talk.socket.recv(timeout=10)
            refused = json.loads(data) if isinstance(data, str) else msgspec.msgpack.decode(data)
            assert refused["headers"]["status"] == 400
            assert f"{size} bytes; 327680 are allowed" in refused["body"]["error"]
        assert talk.ask("queue_create", queue_name=f"after-{size}-{binary}").status == 201


def test_a_frame_that_no_server_could_pass_over_ends_the_connection(
    server: ServerProcess,
) -> None:
    with Talk(server) as talk:
        with contextlib.suppress(ConnectionClosed):
            talk.socket.send("x" * (MOST_DISCARDED + 1))
        assert (talk.end() or ())[:1] == (1009,)


def test_fragments_are_one_frame_and_bounded_together(server: ServerProcess) -> None:
    with Talk(server) as talk:
        talk.socket.send(['{"action": "no', "", 'thing"}'])
        assert talk.answer().body == {"error": "nothing is not a valid action"}
        with contextlib.suppress(ConnectionClosed):
            talk.socket.send(["x" * 1_000] * 400)
        talk.end()


def test_many_frames_at_once_are_answered_in_their_order(server: ServerProcess) -> None:
    with Talk(server) as talk:
        for number in range(500):
            talk.send({"action": f"n{number}", "headers": {}, "body": {}})
        for number in range(500):
            assert talk.answer().request["action"] == f"n{number}"


@pytest.mark.parametrize("path", ["/", "/v2/queues", "/v2/ws/", "/v2/ping"])
def test_no_other_path_is_a_socket(server: ServerProcess, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, Talk(server, path=path):
        pass
    assert refused.value.response.status_code in (300, 400, 404)


def test_a_page_of_another_site_opens_no_socket(server: ServerProcess) -> None:
    for origin in ("https://evil.example", "http://localhost:1", "null", "file://", "http://["):
        with pytest.raises(InvalidStatus) as refused, Talk(server, origin=Origin(origin)):
            pass
        assert refused.value.response.status_code == 403
    with Talk(server, origin=Origin(server.url)) as talk:
        assert talk.ask("ping_node").status == 204


def test_a_page_of_an_allowed_host_opens_a_socket() -> None:
    env = {"ZAQAR_LITE_ALLOWED_HOSTS": "app.example, ::1"}
    with ServerProcess("memory://", env=env) as server:
        for origin in ("https://App.example", "http://app.example:8080", "http://[::1]:3000"):
            with Talk(server, origin=Origin(origin)) as talk:
                assert talk.ask("ping_node").status == 204


@pytest.mark.parametrize(
    "wrong",
    [
        {"Sec-WebSocket-Version": "12"},
        {"Sec-WebSocket-Key": "short"},
        {"Connection": "close"},
        {"Host": "evil.example"},
    ],
)
def test_a_wrong_handshake_is_refused(server: ServerProcess, wrong: dict[str, str]) -> None:
    with Raw(server) as raw:
        answer = upgrade(raw, **wrong)
        assert 400 <= answer.status < 500
        if "Host" in wrong:
            assert (answer.status, answer.json()["title"]) == (400, "Invalid header value")
    with Raw(server) as raw:  # a good one is answered without compression, whatever it offers
        answer = upgrade(raw, **{"Sec-WebSocket-Extensions": "permessage-deflate"})
        assert answer.status == 101
        assert "sec-websocket-extensions" not in answer.headers


def test_a_client_that_vanishes_is_noticed() -> None:
    env = {"ZAQAR_LITE_REQUEST_TIMEOUT": "0.9"}
    with ServerProcess("memory://", env=env) as server, Raw(server) as raw:
        assert upgrade(raw).status == 101
        seen = raw.rest()  # it answers no ping
        assert seen[:2] == b"\x89\x00"
        code = struct.unpack("!H", seen[seen.index(b"\x88") + 2 :][:2])
        assert code == (1011,)


def test_a_reader_that_reads_nothing_is_sent_away() -> None:
    """It asks on and on: it is stopped from asking, and its connection ends."""
    env = {"ZAQAR_LITE_REQUEST_TIMEOUT": "1"}
    with ServerProcess("memory://", env=env) as server, Raw(server) as raw:
        assert upgrade(raw).status == 101
        echoed = b'{"action": "x", "body": "%b"}' % (b"x" * 60_000)
        frame = b"\x81\xfe%b\0\0\0\0%b" % (struct.pack("!H", len(echoed)), echoed)
        deadline = time.monotonic() + 60
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                raw.send(frame)
        assert time.monotonic() < deadline


def test_a_reader_who_reads_slowly_gets_all_of_a_large_answer() -> None:
    """It is larger than the kernel's buffers, and takes longer than a reader may stand still."""
    env = {"ZAQAR_LITE_REQUEST_TIMEOUT": "1"}
    with ServerProcess("memory://", env=env) as server, Raw(server) as raw:
        fill(raw)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        assert upgrade(raw).status == 101
        send_frame(raw, "message_list", queue_name="q", limit=40, large=True, echo=True)
        said, started = 0, time.monotonic()
        while said < 8_000_000:
            part = raw.socket.recv(100_000)
            assert part, f"closed after {said} bytes"
            said += len(part)
            time.sleep(0.05 if time.monotonic() - started < 3 else 0)


def test_a_notification_that_comes_behind_a_large_answer_ends_nothing() -> None:
    with ServerProcess("memory://") as server, Raw(server) as raw, Raw(server) as other:
        fill(other)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        assert upgrade(raw).status == 101
        send_frame(raw, "subscription_create", queue_name="r")
        send_frame(raw, "message_list", queue_name="q", limit=40, large=True, echo=True)
        said = raw.socket.recv(10_000)
        while b"message_list" not in said:
            said += raw.socket.recv(10_000)
        comes = json.dumps({"messages": [{"body": "comes"}]}).encode()
        assert other.call("POST", "/v2/queues/r/messages", comes).status == 201
        tried = re.compile(rb"\nzaqar_lite_deliveries_total\S* [1-9]").search
        server.wait_for(lambda: tried(other.call("GET", "/metrics").body) is not None)
        count, end = len(said), b""
        while b'"comes"' not in end:
            part = raw.socket.recv(100_000)
            assert part, f"closed after {count} bytes"
            count, end = count + len(part), end[-1_000:] + part
        assert count > 8_000_000


def test_a_stop_says_goodbye() -> None:
    with ServerProcess("memory://") as server, Talk(server) as talk:
        assert talk.ask("ping_node").status == 204
        assert server.terminate() == 0
        assert (talk.end() or ())[:1] == (1001,)


def test_connections_are_bounded_together() -> None:
    with ServerProcess("memory://", env={"ZAQAR_LITE_MAX_CONNECTIONS": "3"}) as server:
        server.wait_for(lambda: not established(server.port))  # what asked whether it is ready
        with Talk(server), Talk(server), Talk(server):
            # It is refused before it asks, which a WebSocket's client may not expect.
            with socket.create_connection(("127.0.0.1", server.port), 30) as fourth:
                with contextlib.suppress(OSError):
                    fourth.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert fourth.recv(12) == b"HTTP/1.1 503"
