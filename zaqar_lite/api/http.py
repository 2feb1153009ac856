"""HTTP's reader and writer: calls made of bare ASGI, and results as its headers and bodies."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote_plus

from zaqar_lite.api.call import Call, Refused, Result, bad_body
from zaqar_lite.service.quotas.connected import Link

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PEER_NAMES = "zaqar.peer_names"
"""In the scope, where a client has shown a certificate: the names that it is for."""
EXCHANGE = "zaqar.exchange"
"""In the scope, where our own connections serve: the request's `Exchange`."""
_NO_CONTENT_STATUSES = (204, 304)
_MAX_PARAMETERS = 256
_LISTS_OF_IDS = {"ids", "claim_ids"}


def address_of(scope: Scope) -> str:
    """Where a request comes from; empty for a socket that has no address."""
    client = scope.get("client")
    return client[0] if client else ""


class Exchange(Protocol):
    """One request on a connection, which may be answered in one step."""

    unsent: bool
    """Whether the connection had ended before the answer was written."""

    @property
    def link(self) -> Link:
        """The connection."""

    async def answer(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send an answer; `headers` say how long its body is."""

    def tell_gone(self, gone: asyncio.Future[None]) -> bool:
        """Let `gone` be done once the client has gone; False where its request is not read yet."""

    async def stream(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: Coroutine[Any, Any, None],
        ended: Callable[[], None],
    ) -> None:
        """Begin an answer, and let `body` write it in a task of its own; `ended` is called then.

        If the task is cancelled, the connection ends with what was read of the answer.
        """

    async def write(self, part: bytes) -> None:
        """Write a part of a stream, once the connection has room for it."""


class Request(Call):
    """A call that came over HTTP: what the ASGI server gave, read where it is needed.

    `exchange` is there where the server is our own.
    """

    __slots__ = ("exchange", "receive")

    def __init__(
        self,
        method: str,
        path: str,
        query_string: bytes,
        headers: dict[bytes, bytes],
        receive: Receive,
    ) -> None:
        super().__init__(method, path, headers)
        self.query_string = query_string
        self.receive = receive
        self.exchange: Exchange | None = None

    def _read_parameters(self) -> dict[str, list[str]]:
        return parse_query(self.query_string)

    async def read(self) -> bytes:
        """Read the body: Content-Length bytes; without that header there is none."""
        if not self.size:
            return await super().read()
        message = await self.receive()
        body: bytes = message.get("body", b"")
        parts, size = [body], len(body)
        while message.get("more_body") and size <= self.size:
            message = await self.receive()
            part: bytes = message.get("body", b"")
            parts.append(part)
            size += len(part)
        if size != self.size:
            raise bad_body("The body is not as long as its Content-Length says.")
        return body if len(parts) == 1 else b"".join(parts)

    def tells_gone(self, gone: asyncio.Future[None]) -> bool:
        """Whether the connection itself lets `gone` be done."""
        return self.exchange is not None and self.exchange.tell_gone(gone)

    async def gone(self) -> None:
        """Wait until the client has closed its connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def header_list(call: Call, result: Result, body: bytes) -> list[tuple[bytes, bytes]]:
    """All headers of a result; without a body there is no Content-Type, for 204 no length."""
    headers = [(b"x-openstack-request-id", call.request_id.encode())]
    if body or result.stream is not None:
        headers.append((b"content-type", result.media_type))
    if result.stream is not None:
        return [*headers, *result.headers]
    if result.status not in _NO_CONTENT_STATUSES:
        headers.append((b"content-length", b"%d" % len(body)))
    headers.extend(result.headers)
    return headers


async def write(
    send: Send,
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    exchange: Exchange | None = None,
) -> None:
    """Send an answer, in two parts where the server is not ours."""
    if exchange is not None:
        await exchange.answer(status, headers, body)
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def parse_query(query_string: bytes) -> dict[str, list[str]]:
    """All parameters of a query string, by upstream's rules (zaqar-behaviour 1.4).

    Those with empty values are dropped; values split at commas. Lists of ids split at encoded
    commas too: many libraries write a comma of a value as %2C.

    Raises:
        Refused: 400, there are more than 256; to leave some out would change what is asked for.
    """
    if not query_string:
        return {}
    found: dict[str, list[str]] = {}
    pairs = query_string.decode("latin-1").split("&", _MAX_PARAMETERS)
    if len(pairs) > _MAX_PARAMETERS:
        raise Refused(
            400, "Invalid parameter", f"A request may have at most {_MAX_PARAMETERS} parameters."
        )
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in _LISTS_OF_IDS:
            values = [part for part in _decode(value).split(",") if part]
        else:
            values = [_decode(part) for part in value.split(",") if part]
        if values:
            found.setdefault(_decode(name), []).extend(values)
    return found


def _decode(part: str) -> str:
    if "%" not in part and "+" not in part:
        return part
    return unquote_plus(part)
