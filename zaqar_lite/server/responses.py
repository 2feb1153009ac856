"""The bytes of an answer over HTTP/1.1."""

from collections.abc import Sequence
from http import HTTPStatus

from zaqar_lite.api.asgi import NO_CONTENT_STATUSES
from zaqar_lite.api.call import Call, Result

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_PART = b"0\r\n\r\n"


def _refusal(status: bytes, title: bytes, description: bytes, more: bytes = b"") -> bytes:
    body = b'{"title":"%b","description":"%b"}' % (title, description)
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bconnection: close\r\n" % (
        status,
        more,
    )
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


TOO_LARGE = _refusal(
    b"431 Request Header Fields Too Large",
    b"Request header too large",
    b"The request line and the headers are together larger than max_request_head allows.",
)
NO_HTTP = _refusal(
    b"400 Bad Request",
    b"Bad request",
    b"This is not a valid HTTP/1.1 request. Usual causes: TLS to a port of plain HTTP, an unknown "
    b"method, a blank in the target, a target of more than 64 KiB, or a length that is wrong or "
    b"given twice.",
)
FULL = _refusal(
    b"503 Service Unavailable",
    b"Service temporarily unavailable",
    b"The server has too many connections. Please try again in a few seconds.",
    b"retry-after: 1\r\n",
)
SOCKETS_ONLY = _refusal(
    b"426 Upgrade Required",
    b"Upgrade required",
    b"This port is for WebSockets alone.",
    b"upgrade: websocket\r\n",
)
FAILED = _refusal(
    b"500 Internal Server Error",
    b"Internal server error",
    b"The answer could not be written; the log says why.",
)


def written(call: Call, result: Result, more: bytes, *, closes: bool) -> bytes:
    """Write an answer, or the head of a stream; `more` are header lines that it has besides.

    Raises:
        ValueError: a header has a line break.
    """
    body = result.body
    lines = _CLOSE if closes else b""
    for name, value in result.headers:
        if b"\n" in value or b"\r" in value:
            raise ValueError(f"the header {name.decode()} of an answer has a line break")
        lines += b"%b: %b\r\n" % (name, value)
    if result.stream is not None:
        lines += b"content-type: %b\r\n%b" % (result.media_type, _CHUNKED)
    elif body:
        lines += b"content-type: %b\r\ncontent-length: %d\r\n" % (result.media_type, len(body))
    elif result.status not in NO_CONTENT_STATUSES:
        lines += b"content-length: 0\r\n"
    return b"%b%bx-openstack-request-id: %b\r\n%b\r\n%b" % (
        _STATUS_LINES[result.status],
        more,
        call.request_id.encode(),
        lines,
        b"" if call.method == "HEAD" else body,
    )


def part_of_stream(part: bytes) -> bytes:
    """Write a part of a stream that is not empty."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Write headers that every answer has."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])
