"""Complete answers for connections whose requests never reach the application."""

from zaqar_lite.api.http import Receive, Scope, Send


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


async def refuse_http(_: Scope, __: Receive, send: Send) -> None:
    """Refuse a request of plain HTTP on the port for WebSockets."""
    body = b'{"title":"Upgrade required","description":"This port is for WebSockets alone."}'
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"upgrade", b"websocket"),
    ]
    await send({"type": "http.response.start", "status": 426, "headers": headers})
    await send({"type": "http.response.body", "body": body})
