"""A transport that counts retries and notes the times of a task's requests."""

import time

from zaqar_lite.client import Unreachable
from zaqar_lite.client.calls import Request, Response
from zaqar_lite.client.transports import Transport


class Watched:
    """Count repeated requests, and note when posting began and ended; threads share it.

    Attributes:
        first: when the first POST was sent, in seconds since 1970; None before.
        last: when the last answer to a POST came.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._failures: list[None] = []
        self.first: float | None = None
        self.last: float | None = None

    @property
    def failures(self) -> int:
        """Requests without an answer, or with one that asks to try again."""
        return len(self._failures)

    def send(self, base: str, request: Request) -> Response:
        """Send a request through the transport below."""
        if self.first is None and request.method == "POST":
            self.first = time.time()
        try:
            response = self._transport.send(base, request)
        except Unreachable:
            self._failures.append(None)
            raise
        if request.method == "POST":
            self.last = time.time()
        if response.status in {429, 503}:
            self._failures.append(None)
        return response

    def close(self) -> None:
        """Close the transport below."""
        self._transport.close()
