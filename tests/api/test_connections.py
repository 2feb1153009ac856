"""What happens on one connection: every answer is its request's, and nobody waits for ever."""

import contextlib
import gzip
import json
import random
import socket
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.api.sockets import SENDER, Raw, chunked, established, request
from tests.server import ServerProcess
from zaqar_lite.api.request import request_of

POST = "/v2/queues/q/messages"
WAITS = {"Expect": "100-continue"}
H2C = {"Connection": "Upgrade", "Upgrade": "h2c"}
MESSAGE = b'{"messages": [{"body": 1}]}'


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    """A server that gives its clients little time."""
    bounds = {
        "ZAQAR_LITE_REQUEST_TIMEOUT": "1",
        "ZAQAR_LITE_KEEP_ALIVE": "3",
    }
    with ServerProcess("memory://", env=bounds) as started:
        yield started


def fill(server: ServerProcess, queue: str) -> None:
    """Post so much that a page of it is 2 MB."""
    body = b'{"messages": [{"body": "%b"}]}' % (b"x" * 200_000)
    with Raw(server) as raw:
        for _ in range(10):
            assert raw.call("POST", f"/v2/queues/{queue}/messages", body).status == 201


ASKS = request("GET", "/v2/queues")
CHUNKED = request("POST", POST, headers={"Transfer-Encoding": "chunked"})


@pytest.mark.parametrize(
    ("first", "then"),
    [
        *(
            (request("POST", POST, length=size), b"x" * size + ASKS)
            for size in (262_145, 2_000_000, 7_000_000)
        ),
        (request("POST", POST, b"x" * 6_000_000) + ASKS, b""),
        (CHUNKED + b"%x\r\n%b\r\n" % (300_000, b"x" * 300_000), b""),
    ],
    ids=["larger by a byte", "larger", "much larger", "sent before it reads", "chunked"],
)
def test_a_body_that_is_too_large_is_refused_and_the_connection_ends(
    server: ServerProcess, first: bytes, then: bytes
) -> None:
    """The request that follows on the connection gets no answer, neither its own nor another's."""
    with Raw(server) as raw:
        raw.send(first)
        refused = raw.answer()
        assert (refused.status, refused.json()["title"]) == (400, "Invalid API request")
        assert refused.headers["connection"] == "close"
        with contextlib.suppress(ConnectionError):
            raw.send(then)
        assert raw.rest() == b""


@pytest.mark.parametrize("has_come", [False, True])
@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/nope", {}),
        (POST, {"Client-ID": "none"}),
        (POST, {"Content-Type": "application/x-www-form-urlencoded"}),
        ("/v2/queues/a@b/messages", {}),
    ],
)
def test_an_answer_without_reading_the_body_is_the_last(
    server: ServerProcess, path: str, headers: dict[str, str], has_come: bool
) -> None:
    """Whether or not the body had come by then: what follows is neither answered nor done."""
    queue = f"/v2/queues/{uuid.uuid4().hex}"
    follows = request("PUT", queue) + request("GET", "/v2/queues")
    sent = request("POST", path, length=len(MESSAGE), headers=headers)
    with Raw(server) as raw:
        raw.send(sent + MESSAGE + follows if has_come else sent)
        refused = raw.answer()
        assert 400 <= refused.status < 500
        assert refused.headers["connection"] == "close"
        if not has_come:
            raw.send(MESSAGE + follows)
        assert raw.rest() == b""
    with Raw(server) as raw:
        listed = raw.call("GET", f"/v2/queues?name={queue.rpartition('/')[2]}").json()
        assert listed["queues"] == []


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        request("GET", "/livez").replace(b"\r\n", b"\n"),
        request("GET", "/livez")[:-2] + b"\n" + request("GET", "/livez"),
        request("CONNECT", "/livez", request("GET", "/livez")),
        request("POST", POST, MESSAGE, headers={"Content-Length": "27".zfill(19)})
        + request("GET", "/livez"),
        b"\r\n" * 33 + request("GET", "/livez"),
    ],
)
def test_what_is_no_http_is_refused_in_the_form_of_errors(
    server: ServerProcess, sent: bytes
) -> None:
    """Text that is no request, lines that end by halves, and the beginning of TLS."""
    with Raw(server) as raw:
        raw.send(sent)
        refused = raw.answer()
        assert (refused.status, refused.headers["connection"]) == (400, "close")
        assert refused.json()["title"] == "Bad request"
        assert "TLS to a port of plain HTTP" in refused.json()["description"]
        assert raw.rest() == b""


def test_a_client_that_waits_for_leave_to_send_sends_nothing_too_large(
    server: ServerProcess,
) -> None:
    with Raw(server) as raw:
        raw.send(request("POST", POST, length=len(MESSAGE), headers=WAITS))
        assert raw.answer().status == 100
        raw.send(MESSAGE)
        assert raw.answer().status == 201
        raw.send(request("POST", POST, length=262_145, headers=WAITS))
        assert raw.answer().status == 400
        assert raw.rest() == b""


@pytest.mark.parametrize(("part", "pause"), [(b"x" * 65_536, 0), (b"x", 0.1)])
def test_no_more_than_8_mib_are_passed_over_and_not_for_long(
    server: ServerProcess, part: bytes, pause: float
) -> None:
    with Raw(server) as raw:
        raw.send(request("POST", POST, length=1 << 40))
        assert raw.answer().status == 400
        started = time.monotonic()
        if pause:  # who sends nothing more reads the end at once, and may not write for 2 s more
            assert raw.rest() == b""
        assert raw.send_until_refused(part, pause=pause) < 32 << 20  # and what the kernels hold
        assert time.monotonic() - started < 20


def test_a_reader_who_does_not_read_is_dropped(strict: ServerProcess) -> None:
    """Its answers fill the kernel's buffers first, so it asks for many."""
    fill(strict, "big")
    readers = [socket.socket() for _ in range(5)]
    try:
        for reader in readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            reader.settimeout(30)
            reader.connect(("127.0.0.1", strict.port))
            for _ in range(40):
                reader.sendall(request("GET", "/v2/queues/big/messages?echo=true"))
        strict.wait_for(lambda: not established(strict.port))
    finally:
        for reader in readers:
            reader.close()


def test_a_reader_who_reads_slowly_gets_all_of_its_answer(strict: ServerProcess) -> None:
    fill(strict, "slow")
    with Raw(strict) as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        raw.send(request("GET", "/v2/queues/slow/messages?echo=true"))
        said = b""
        started = time.monotonic()
        while len(said) < 2_000_000:
            part = raw.socket.recv(100_000)
            assert part, f"closed after {len(said)} bytes"
            said += part
            time.sleep(0.08 if time.monotonic() - started < 5 else 0)


def test_a_head_may_have_256_kib(strict: ServerProcess) -> None:
    """It is parsed in pieces of 8 KiB, and refused at the first one that ends beyond the bound."""
    few = {f"X-{n}": "x" * 15_000 for n in range(16)}
    for size, statuses in ((262_144, [200, 200]), (262_144 + 8_193, [431])):
        rest = size - len(request("GET", "/v2/queues", headers={**few, "X-A": ""}))
        named = {**few, "X-A": "x" * min(rest, 16_000), "X-B": "x" * max(rest - 16_007, 0)}
        with Raw(strict) as raw:
            raw.send(request("GET", "/v2/queues", headers=named))
            if statuses == [200, 200]:
                raw.send(request("GET", "/v2/queues"))
            assert [raw.answer().status for _ in statuses] == statuses


def test_what_trails_a_body_may_have_256_kib(strict: ServerProcess) -> None:
    """Nothing of it is kept; each byte of a body begins the count again."""
    post = request("POST", POST, headers={"Transfer-Encoding": "chunked"})
    for extra, status in (b";x=%b" % (b"x" * 200_000), 201), (b"", 431):
        sent = b"".join(b"%x%b\r\n%c\r\n" % (1, extra, byte) for byte in MESSAGE[:3])
        sent += b"%x\r\n%b\r\n0\r\n" % (len(MESSAGE) - 3, MESSAGE[3:])
        sent += b"X: 1\r\n\r\n" if extra else b"X: %b" % (b"x" * 270_400)
        with Raw(strict) as raw:
            raw.send(post + sent)
            assert raw.answer().status == status


def test_a_head_of_many_names_takes_no_time() -> None:
    sent = [(b"%x" % number, b"") for number in range(40_000)]
    begun = time.process_time()
    assert request_of("GET", b"/", b"", [*sent, sent[7]]).repeated == (b"7",)
    assert time.process_time() - begun < 1


KNOWN = request("POST", POST, MESSAGE + b" " * 9_000)


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /v2/queues HTTP/1.1\r\nX: ",
        request("POST", POST, b"{", length=9_000),
        KNOWN[:-9_000],
    ],
    ids=["head", "body", "body behind a known head"],
)
def test_a_request_that_comes_byte_by_byte_has_an_end(strict: ServerProcess, begun: bytes) -> None:
    with Raw(strict) as raw:
        raw.send(KNOWN)
        assert raw.answer().status == 201
        raw.send(begun)
        started = time.monotonic()
        raw.send_until_refused(b" ", pause=0.2)
        assert 4.5 < time.monotonic() - started < 25


def test_connections_are_bounded_and_a_full_table_is_logged_once() -> None:
    with (
        ServerProcess("memory://", env={"ZAQAR_LITE_MAX_CONNECTIONS": "8"}) as server,
        contextlib.ExitStack() as stack,
    ):
        server.wait_for(lambda: not established(server.port))  # what asked whether it is ready
        held = [stack.enter_context(Raw(server)) for _ in range(8)]
        for raw in held:
            assert raw.call("GET", "/v2/ping").status == 204
            raw.send(b"GET /v2/ping HTTP/1.1\r\nX: ")
        for _ in range(4):
            with Raw(server) as late:
                refused = late.call("GET", "/v2/queues")
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                assert refused.json()["title"] == "Service temporarily unavailable"
                assert late.rest() == b""
        held[0].socket.close()
        server.wait_for(lambda: established(server.port) < 8)
        with Raw(server) as raw:
            assert raw.call("GET", "/v2/queues").status == 200
        assert server.log().count("max_connections") == 1


def test_clients_that_send_no_http_do_not_fill_the_log() -> None:
    with ServerProcess("memory://") as server:
        for _ in range(30):
            with Raw(server) as raw:
                raw.send(b"\x16\x03\x01 no HTTP\r\n\r\n")
                assert raw.answer().status == 400
            with Raw(server) as raw:
                raw.send(request("GET", "/livez", headers=H2C))
                assert raw.answer().status == 200
        assert server.log().count("Invalid HTTP request received.") == 1
        assert server.log().count("Unsupported upgrade request.") == 1


def test_connections_that_the_open_files_cannot_hold_are_told_of() -> None:
    limited = ["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh"]
    with ServerProcess("memory://", wrapper=limited) as server:
        assert "ulimit -n" in server.log()
        assert "44 connections at most" in server.log()


LARGEST = 262_144
"""Bytes of a post, where the settings do not say otherwise."""


@pytest.mark.parametrize("size", [LARGEST, LARGEST + 1])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_may_be_as_large_as_its_route_allows(
    server: ServerProcess, size: int, encoding: str, is_chunked: bool
) -> None:
    """However it comes: what counts is what it holds, not what is sent."""
    frame = len(MESSAGE) - 1
    body = MESSAGE.replace(b"1", b'"%b"' % (b"x" * (size - frame - 2)))
    assert len(body) == size
    sent = body if encoding == "identity" else gzip.compress(body)
    named = {"Content-Encoding": encoding}
    with Raw(server) as raw:
        if is_chunked:
            raw.send(chunked("POST", POST, sent[:100], sent[100:], **named))
        else:
            raw.send(request("POST", POST, sent, headers=named))
        assert raw.answer().status == (201 if size == LARGEST else 400)


def test_a_body_with_two_lengths_is_refused(server: ServerProcess) -> None:
    """Two servers could see two requests in it."""
    for two in (
        {"Transfer-Encoding": "chunked", "Content-Length": "4"},
        {"Content-Length": "4\r\nContent-Length: 27"},
        {"Transfer-Encoding": "chunked, identity"},
        {"Transfer-Encoding": "identity\r\nTransfer-Encoding: chunked"},
        {"Transfer-Encoding": "", "Content-Length": "31"},
    ):
        with Raw(server) as raw:
            raw.send(request("POST", POST, headers=two) + b"0\r\n\r\n" + MESSAGE)
            assert raw.answer().status == 400
            assert b"HTTP/1.1 2" not in raw.rest()


ID = SENDER["Client-ID"]
TWICE = gzip.compress(MESSAGE) + gzip.compress(b" ")
ASKED = [
    (request("POST", POST, MESSAGE), 201),
    (request("GET", POST), 200),
    (request("GET", "/nope"), 404),
    (request("PUT", POST), 405),
    (request("POST", POST, b"{"), 400),
    (request("DELETE", f"{POST}?ids={'0' * 32}"), 204),
    (request("POST", POST, b'{"messages": [{"body": "%b"}]}' % (b"x" * 30_000)), 201),
    (request("POST", POST, gzip.compress(MESSAGE), headers={"Content-Encoding": "gzip"}), 201),
    (chunked("POST", POST, MESSAGE[:10], MESSAGE[10:]), 201),
    (chunked("POST", POST, MESSAGE + b"\r\n\r\n" * 5_000), 201),
    (chunked("POST", POST, MESSAGE, b"\r\n", b"\r\n\r\n")[:-2] + b"X-Trailer: 1\r\n\r\n", 201),
    (request("GET", POST, headers={"X-Long": "x" * 9_000}), 200),
    (request("POST", POST, MESSAGE, headers={"X-Long": "x" * 3_000}), 201),
    (request("POST", POST, MESSAGE, headers=H2C), 201),
    (request("GET", POST, headers=H2C), 200),
    (chunked("POST", POST, MESSAGE, **H2C), 201),
    (
        request("POST", POST, MESSAGE, headers={"Content-Length": "27 \t", "Client-ID": ID + " "}),
        201,
    ),
    (request("POST", POST, TWICE, headers={"Content-Encoding": "gzip"}), 400),
    (request("GET", "http://127.0.0.1"), 300),
]
"""Requests that have come whole, with the status that each gets."""
LAST = [
    (b"NONSENSE\r\n\r\n" * 2, 400),
    (chunked("POST", POST, MESSAGE)[:-5] + b"zz\r\n", 400),
    (request("GET", POST, headers={"Connection": "close"}) + request("GET", POST), 200),
    (request("GET", POST, headers={"Connection": "close"}) + chunked("POST", POST, MESSAGE), 200),
    (request("POST", "/nope", MESSAGE[:-1], length=len(MESSAGE)), 404),
]
"""What ends a connection, with the status that it gets."""


def test_however_its_bytes_are_cut_each_request_gets_its_own_answer(server: ServerProcess) -> None:
    """Also before the one that ends the connection, whatever is sent behind that."""
    chance = random.Random(36)
    for _ in range(60):
        asked = [*chance.choices(ASKED, k=chance.randint(1, 40)), chance.choice(LAST)]
        data = b"".join(sent for sent, _ in asked)
        sizes = chance.choice([(len(data),), (1, 5, 400, 3_000), (50, 9_000, 20_000)])
        with Raw(server) as raw:
            while data:
                size = chance.choice(sizes)
                raw.send(data[:size])
                data = data[size:]
            assert [raw.answer().status for _ in asked] == [status for _, status in asked]
            assert raw.rest() == b""


def test_a_connection_is_kept_as_long_as_the_setting_says(strict: ServerProcess) -> None:
    with Raw(strict) as raw:
        for _ in range(2):
            raw.send(b"\r\n" * 31)  # begins no request
            assert raw.call("GET", "/v2/ping").status == 204
            raw.send(b"\r\n")
            time.sleep(2)
        started = time.monotonic()
        assert raw.rest() == b""
        assert time.monotonic() - started < 20


METADATA: list[dict[str, object]] = [
    {},
    {"_default_message_delay": 5},
    {"_max_claim_count": 1, "_dead_letter_queue": "dead"},
    {"_filter": "a = 'b'"},
]


@pytest.mark.parametrize(
    ("store", "auth"), [("memory://", "none"), ("embedded:data", "none"), ("memory://", "keys")]
)
def test_what_is_answered_without_a_task_needs_none(store: str, auth: str, tmp_path: Path) -> None:
    """`asyncio.timeout` and others do: every first request of its kind would be a 500."""
    quotas = ("MESSAGES", "QUEUES", "CONNECTIONS", "WRITE_REQUESTS", "READ_REQUESTS")
    env = {f"ZAQAR_LITE_QUOTAS__{name}": "1000" for name in quotas}
    key = tmp_path / "admin.key"
    started = ServerProcess(store, "--auth", auth, "--admin-key-file", str(key), env=env)
    with started.start(ready=204 if auth == "none" else 401) as server:
        text = key.read_text().strip() if key.exists() else "unasked"
        call = partial(Raw.call, Authorization=f"Bearer {text}")
        for kind, metadata in enumerate(METADATA):
            for number, (method, below, document) in enumerate(
                (
                    ("GET", "messages", None),
                    ("POST", "messages", {"messages": [{"body": 1}] * 5}),
                    ("POST", "claims?limit=5", {"ttl": 60, "grace": 60}),
                    ("DELETE", "messages?pop=1", None),
                    ("DELETE", f"messages?ids={'0' * 32}", None),
                    ("POST", f"claims/{'0' * 32}/settle", {"delete": ["0" * 32]}),
                )
            ):
                queue = f"/v2/queues/q-{kind}-{number}"
                with Raw(server) as raw:
                    made = call(raw, "PUT", queue, json.dumps(metadata).encode())
                    assert made.status == 201
                body = b"" if document is None else json.dumps(document).encode()
                for place in (queue, f"/v2/queues/new-{kind}-{number}", f"/v2/topics/t-{number}"):
                    with Raw(server) as raw:
                        assert call(raw, method, f"{place}/{below}", body).status < 500
        assert "Traceback" not in server.log()


def test_http_1_0_and_a_wish_to_close_end_the_connection(server: ServerProcess) -> None:
    with Raw(server) as raw:
        raw.send(request("GET", "/v2/queues").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert raw.answer().headers["connection"] == "close"
        assert raw.rest() == b""
    with Raw(server) as raw:
        raw.send(request("GET", "/v2/queues", headers={"Connection": "close"}) * 2)
        assert raw.answer().headers["connection"] == "close"
        assert raw.rest() == b""
