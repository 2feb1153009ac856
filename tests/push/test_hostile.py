"""Receivers that attack the server which calls them: endless, slow and nonsensical answers."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.push.receiver import serving
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import MAX_RECORD, QueueRef
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.push.guard import Guard
from zaqar_lite.push.webhook import _MOST_PIECES, Webhooks
from zaqar_lite.service.delivery.attempt import (
    Answer,
    DeliveryOutcome,
    DeliverySender,
    Notification,
    Transport,
)
from zaqar_lite.service.delivery.outbox import Delivery

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\n"
UNAVAILABLE = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nRetry-After: "


@asynccontextmanager
async def answered(first: bytes, part: bytes = b"", pause: float = 0) -> AsyncIterator[Answer]:
    """The answer to a delivery whose receiver sends `first`, and then `part` again and again."""
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while part:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
        except (OSError, asyncio.IncompleteReadError):
            return

    webhooks = Webhooks(Guard(["127.0.0.0/8"]), total=1)
    async with serving(answer) as url:
        try:
            yield await webhooks.send(Notification(url, {}, b"{}", {}))
        finally:
            await webhooks.close()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    ("value", "least"),
    [
        ("7", 7.0),
        ("9" * 4_000, 999_999_999.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
        ("Mon, 01 Jan 2001 00:00:00 +" + "9" * 20, None),
        ("Mon, " + "9" * 20 + " Jan 2030 00:00:00 GMT", None),
        ("Mon, 01 Jan 99999 00:00:00 GMT", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("\N{ARABIC-INDIC DIGIT ONE}", None),
        ("-1", None),
        ("nan", None),
        ("", None),
    ],
)
async def test_any_retry_after_is_read_or_passed_over(value: str, least: float | None) -> None:
    async with answered(UNAVAILABLE + value.encode() + b"\r\n\r\n") as answer:
        assert (answer.status, answer.retry_after) == (503, least)


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (OK, b"A: b\r\n" * 1_000),
        (OK + b"A: ", b"b" * 8_192),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 8_192),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n" * 1_000),
    ],
    ids=["headers", "one header", "continue", "extension", "trailers"],
)
async def test_an_answer_whose_head_never_ends_is_a_failure(first: bytes, part: bytes) -> None:
    async with answered(first, part) as answer:
        assert answer.status is None
        assert answer.error


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (OK + b"\r\n", b"x" * 8_192),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1_024 + b"\r\n"),
    ],
    ids=["until the end", "chunked"],
)
async def test_an_endless_body_is_read_for_a_while(first: bytes, part: bytes) -> None:
    async with answered(first, part) as answer:
        assert (answer.status, answer.text) == (200, "x" * 1_024)


async def test_an_answer_in_tiny_chunks_is_read_for_a_few_of_them() -> None:
    async with answered(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 500) as answer:
        assert (answer.status, answer.error) == (200, "")
        assert answer.text == "x" * _MOST_PIECES


@pytest.mark.parametrize("count", [_MOST_PIECES // 2, 50_000])
async def test_a_connection_is_kept_after_an_answer_of_few_pieces(count: int) -> None:
    """One of more pieces ends its connection, so that the rest is never parsed."""
    connections = 0
    chunks = OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count + b"0\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                writer.write(chunks)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    webhooks = Webhooks(Guard(["127.0.0.0/8"]), total=5)
    async with serving(answer) as url:
        for _ in range(2):
            sent = await webhooks.send(Notification(url, {}, b"{}", {}))
            assert (sent.status, sent.text) == (200, "x" * min(count, _MOST_PIECES))
        await webhooks.close()
    assert connections == (1 if count < _MOST_PIECES else 2)


@pytest.mark.parametrize("first", [OK, OK + b"\r\n"], ids=["head", "body"])
async def test_a_slow_answer_has_its_time(first: bytes) -> None:
    begun = time.monotonic()
    async with answered(first, b"A", 0.05) as answer:
        assert (answer.status, answer.error) == (None, "no answer in time")
        assert time.monotonic() - begun < 10


async def test_little_of_an_answer_waits_to_be_parsed_at_once() -> None:
    loop = asyncio.get_running_loop()
    webhooks = Webhooks(Guard(["127.0.0.0/8"]), total=5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        sending = asyncio.create_task(webhooks.send(Notification(url, {}, b"{}", {})))
        connection, _ = await loop.sock_accept(listener)
        with connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            await loop.sock_recv(connection, 4_096)
            assert _sent_until_full(connection) < 65_536  # nothing is read meanwhile
        await sending
    await webhooks.close()


def _sent_until_full(connection: socket.socket) -> int:
    """How many bytes fit into a connection whose other end, in this thread, reads none."""
    sent, tries = 0, 0
    while tries < 20:
        try:
            sent += connection.send(b"x" * 1_024)
        except BlockingIOError:
            tries += 1
            time.sleep(0.01)
    return sent


class Broken(Transport):
    """A transport with a bug."""

    async def send(self, notification: Notification) -> Answer:
        raise AssertionError(notification)


async def test_a_bug_in_a_transport_is_a_failed_attempt() -> None:
    sender = DeliverySender({"http": Broken()}, Clock(), has_ended=lambda _: False)
    queue = QueueRef("p", "orders")
    delivery = Delivery("p", "orders", "s", "m", 0, msgspec.Raw(b"{}"))
    subscription = Subscription("s", queue, "http://example.org/", 60, {}, 0, 0)
    result = await sender.attempt(delivery, subscription, None, is_fresh=True)
    assert (result.outcome, result.answer.error) == (
        DeliveryOutcome.AGAIN,
        "this server could not send it",
    )


@pytest.mark.parametrize(
    "text", [b"\x01", b"\x7f", b"\xff", b'"', b"\xc2\x9b", b"\xf0\x9f\x98\x80"]
)
async def test_twenty_answers_fit_into_the_record_of_the_log(text: bytes) -> None:
    async with answered(
        OK + b"Connection: close\r\nContent-Length: 1024\r\n\r\n" + (text * 1024)[:1024]
    ) as got:
        assert len(msgspec.json.encode([got.text] * 20)) < 0.95 * MAX_RECORD
