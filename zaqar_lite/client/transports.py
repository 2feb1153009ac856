"""What carries a request: urllib3 for the sync client, aiohttp for the async one.

Each is one method and `close`, so that a user can bring another. Neither retries, follows a
redirect or keeps a cookie: `exchange` decides which request is sent when.
Why these libraries: see the measurements in api-ref, "The SDK".
"""

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any, Protocol

from zaqar_lite.client.calls import Request
from zaqar_lite.client.errors import Unreachable
from zaqar_lite.client.long_polling import CURRENT, Connection

LONGEST_SILENCE = 60.0
"""Seconds after which a stream is taken for dead: the server says every 15 that it lives."""
_CLOSED = "it closed the connection without an answer"


class Transport(Protocol):
    """Send requests and bring their answers; with an async client both methods are coroutines."""

    def send(self, base: str, request: Request) -> Any:  # noqa: ANN401 - a Response
        """Send one and return its `Response`; raise `Unreachable` when no answer came."""
        ...

    def close(self) -> Any:  # noqa: ANN401 - None
        """Close the connections."""
        ...


@contextlib.contextmanager
def waiting_on(connection: Connection | None) -> Iterator[None]:
    """Tell whom waits which socket its request uses, until the answer has come."""
    if connection is None:
        yield
        return
    token = CURRENT.set(connection)
    try:
        yield
    finally:
        CURRENT.reset(token)
        connection.leave()


def unreachable(base: str, error: BaseException, *, connected: bool) -> Unreachable:
    """Return the error of a request without an answer."""
    if any(map(_is_no_tls, _causes(error))):
        description = "it does not answer in TLS; is its address http:// instead of https://?"
        return Unreachable(f"No answer from {base}", description, sent=False, permanent=True)
    reason = reason_of(error)
    if reason == _CLOSED and base.startswith("http://"):
        reason += "; if it speaks TLS, its address begins with https://"
    title = f"No answer from {base}" if connected else f"No connection to {base}"
    return Unreachable(title, reason, sent=connected)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_no_tls(error: BaseException) -> bool:
    # aiohttp's own TLS errors have no `reason`; what caused them does.
    reason = getattr(error, "reason", None)
    return isinstance(error, ssl.SSLError) and reason == "WRONG_VERSION_NUMBER"


def reason_of(error: BaseException) -> str:
    """Return what the operating system said, else what the library says."""
    causes = tuple(_causes(error))
    for cause in causes:
        if refusal := getattr(cause, "verify_message", None):
            trust = "ssl_context, or --ca-file, says whom to trust"
            return f"its certificate is refused: {refusal} ({trust})"
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if isinstance(cause, TimeoutError):
            return "it did not answer within the timeout"
        if isinstance(cause, ConnectionResetError) or str(cause) == "Server disconnected":
            return _CLOSED
    return str(error) or repr(error)
