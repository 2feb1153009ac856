"""The shell around the application for ASGI servers, and the one around ASGI applications.

Our own server calls `Application.answer` without ASGI. What else serves the application, or mounts
it, and `httpx.ASGITransport` in tests, goes through `serve`; the page and the OpenAPI document are
ASGI applications, whose answers `ask` collects. `serve_lifespan` opens the stores at the start and
closes them after the last request.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote

from zaqar_lite.api.request import Headers, Request, Response, bad_body, request_of
from zaqar_lite.domain.errors import ZaqarLiteError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Answer = Callable[[Request], Coroutine[Any, Any, Response]]

NO_CONTENT = 204
"""The status whose answers have no Content-Length, as they have no body."""
_LARGEST_FORM = 4_194_304
"""Bytes of a body for another application, which are all read before it is asked."""


def _header_list(request: Request, response: Response) -> list[tuple[bytes, bytes]]:
    """All headers of a result; without a body there is no Content-Type, for 204 no length."""
    headers = [(b"x-openstack-request-id", request.request_id.encode())]
    if response.body or response.stream is not None:
        headers.append((b"content-type", response.media_type))
    if response.stream is None and response.status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(response.body)))
    headers.extend(response.headers)
    return headers


async def serve(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that came over ASGI."""
    request = request_of(
        scope["method"],
        scope.get("raw_path") or quote(scope["path"]).encode(),
        scope["query_string"],
        scope["headers"],
        path=scope["path"],
    )
    request.source = _Asgi(receive)
    client = scope.get("client")
    request.address = client[0] if client else ""
    request.is_secure = scope.get("scheme") == "https"
    response = await answer(request)
    headers = _header_list(request, response)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.stream is None:
        body = b"" if request.method == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})
        return

    async def write(part: bytes) -> None:
        await send({"type": "http.response.body", "body": part, "more_body": True})

    await response.stream(write)
    await send({"type": "http.response.body", "body": b""})


class _Asgi:
    """The source of a request over ASGI."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def receive(self, request: Request) -> bytes:
        """Wait for the whole body: Content-Length bytes, where there is that header.

        Raises:
            Refused: it is longer or shorter, or larger than the route allows.
        """
        body = bytearray()
        most = request.most if request.size < 0 else request.size
        more = True
        while more and len(body) <= most:
            message = await self._receive()
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
        if request.size < 0:
            request.check_size(len(body))
        elif len(body) != request.size:
            raise bad_body("The body is not as long as its Content-Length says.")
        return bytes(body)

    def watch(self, gone: asyncio.Future[None]) -> Callable[[], object]:
        """Let `gone` be done once the client has gone; call the answer to stop that."""

        async def look() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not gone.done():
                gone.set_result(None)

        return asyncio.create_task(look(), name="watch client").cancel


async def ask(app: AsgiApp, request: Request) -> Response:
    """Have an ASGI application answer a request, and collect its answer.

    Raises:
        Refused: the body is larger than 4 MiB, or ends too early.
    """
    request.most = _LARGEST_FORM
    request.check_size(request.size)
    body = await request.read()
    started: MutableMapping[str, Any] = {}
    parts: list[bytes] = []

    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if left:
            return left.pop()
        never: asyncio.Future[MutableMapping[str, Any]] = asyncio.Future()
        return await never  # by ASGI this waits until the client has gone; nobody watches it here

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "https" if request.is_secure else "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.raw_path,
        "root_path": "",
        "query_string": request.query_string,
        "headers": list(request.headers.items()),
        "client": (request.address, 0) if request.address else None,
        "server": None,
    }
    await app(scope, receive, send)
    sent: Headers = tuple(started["headers"])
    media_type = next((value for name, value in sent if name.lower() == b"content-type"), b"")
    own = (b"content-type", b"content-length")
    headers = tuple((name, value) for name, value in sent if name.lower() not in own)
    response = Response(started["status"], b"".join(parts), headers, media_type)
    response.body = response.text()
    return response


logger = logging.getLogger("zaqar_lite")
Fail = Callable[[BaseException], None]
Lifespan = Callable[[Fail], AbstractAsyncContextManager[None]]
"""Called with what it must tell an error that comes after its start, and ends the server."""


async def serve_lifespan(lifespan: Lifespan, receive: Receive, send: Send) -> None:
    """Run a lifespan by the protocol.

    An error that ends the server is told as a failed start, or, once it listens, as a failed end.
    One that is for users is one line in the log, not a traceback.
    """
    await receive()
    failed: list[BaseException] = []

    def fail(error: BaseException) -> None:
        _log(error)
        failed.append(error)
        signal.raise_signal(signal.SIGTERM)  # the protocol has no other way to ask for an end

    started = False
    try:
        async with lifespan(fail):
            await send({"type": "lifespan.startup.complete"})
            started = True
            # A second Ctrl-C cancels instead of telling; the stores are closed all the same.
            with contextlib.suppress(asyncio.CancelledError):
                await receive()
    except asyncio.CancelledError:  # a signal came before the stores were open: they are closed
        return
    except ZaqarLiteError as exc:
        _log(exc)
        failed.append(exc)
    outcome = "failed" if failed else "complete"
    await send({"type": f"lifespan.{'shutdown' if started else 'startup'}.{outcome}"})


def _log(error: BaseException) -> None:
    if isinstance(error, ZaqarLiteError):
        logger.critical("can't start: %s", error)
    else:
        logger.critical("can't start", exc_info=error)
