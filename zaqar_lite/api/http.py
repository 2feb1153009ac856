"""The request and the response as the handlers see them, over bare ASGI."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from zaqar_lite.domain.identity import TRUSTED, Principal
from zaqar_lite.service.connected import Link

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HttpError(Exception):
    """An answer that is an error: status, title and description of Zaqar's error form.

    `document` is the body of one that has another form.
    """

    def __init__(
        self,
        status: int,
        title: str,
        description: str | None = None,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        link: Mapping[str, str] | None = None,
        index: int | None = None,
        document: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.description = description
        self.headers = tuple(headers)
        self.link = link
        self.index = index
        self.document = document


PEER_NAMES = "zaqar.peer_names"
"""In the scope, where a client has shown a certificate: the names that it is for."""
EXCHANGE = "zaqar.exchange"
"""In the scope, where our own connections serve: the request's `Exchange`."""


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

    async def abort(self) -> None:
        """End the connection now; whatever was not read of its answer is lost."""


Write = Callable[[bytes], Awaitable[None]]
"""Send a part of a body; it returns once the connection has room for more."""
Stream = Callable[[Write], Awaitable[None]]
"""Write a body part by part, and end with it."""


class Response(NamedTuple):
    """An answer: status, body (empty for none) and the headers that are not about the body.

    `undo` takes back what was done for a client that has gone before it was answered. A `stream`
    writes the body instead; it is always called, and cancelled where the server can't wait for it.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"
    undo: Callable[[], Awaitable[object]] | None = None
    stream: Stream | None = None


NO_CONTENT = Response(204)


def warning(*texts: str | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header that tells a client what was done otherwise than it may think, if any."""
    told = " ".join(text for text in texts if text is not None)
    return ((b"zaqar-lite-warning", told.encode("ascii", "replace")),) if told else ()


class WrongLength(Exception):
    """The body ended before its Content-Length, or went on after it."""


@dataclass
class Request:
    """A request: what the ASGI server gave, read where it is needed.

    `headers` has lower-case names; of a repeated header the last value holds. `path_values` are
    the variable segments of the path, in order; `status` is what was answered, `answered` how many
    bytes its body had where the framework answered, and `route` the name of the route that did;
    `streams_since` is when it began to stream, in seconds of `perf_counter`; `waits` how many
    seconds it may wait for a message. `principal` is who sent it: whoever its headers name where
    nobody authenticates; with `signed_query` its signature came in the query. `tell` is called
    with the answer, before it leaves, where the audit trail is told; `address` is where it came
    from, for that. `end` ends the stream that it is answered with. `listener` is who
    subscribes where the document names no subscriber: the connection itself.

    It has no slots: what nobody sets costs a request nothing.
    """

    method: str
    path: str
    query_string: bytes
    headers: dict[bytes, bytes]
    receive: Receive
    path_values: tuple[str, ...] = field(init=False, default=())
    request_id: str = field(init=False, default="")
    content_length: int = field(init=False, default=0)
    project: str = field(init=False, default="")
    client_id: str = field(init=False, default="")
    status: int = field(init=False, default=0)
    answered: int = field(init=False, default=0)
    route: str = field(init=False, default="")
    streams_since: float = field(init=False, default=0.0)
    waits: int = field(init=False, default=0)
    signed_query: bool = field(init=False, default=False)
    address: str = field(init=False, default="")
    listener: str = field(init=False, default="")
    tell: "Callable[[Response], None] | None" = field(init=False, default=None)
    end: Callable[[], None] | None = field(init=False, default=None)
    principal: Principal = field(init=False, default=TRUSTED)

    async def body(self) -> bytes:
        """Read the body: Content-Length bytes; without that header there is none.

        Raises:
            WrongLength: the client sent fewer, because it went away, or more.
        """
        if not self.content_length:
            return b""
        message = await self.receive()
        body: bytes = message.get("body", b"")
        parts, size = [body], len(body)
        while message.get("more_body") and size <= self.content_length:
            message = await self.receive()
            part: bytes = message.get("body", b"")
            parts.append(part)
            size += len(part)
        if size != self.content_length:
            raise WrongLength
        return body if len(parts) == 1 else b"".join(parts)
