"""What one connection may cost: bytes that belong to no request yet, and the time one may take.

uvicorn's httptools protocol keeps the head of a request for as long as it grows, and waits for the
rest of a request for ever. Answers to requests as such are given by `zaqar_lite.api`.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_TOO_LARGE = (
    b'{"title":"Request header too large",'
    b'"description":"The head of a request, and what follows an answered one, are bounded."}'
)
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_TOO_LARGE), _TOO_LARGE)
)


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed over `max_head` bytes, or after `request_timeout` seconds.

    Counted are the bytes of a head that has not ended, and those of a body that nobody reads since
    its request was answered. The time is that without a byte while a request is incomplete.
    """

    max_head = 262_144
    request_timeout = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **options)
        self._uncounted = 0
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        self._watch(self.request_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """End watching."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data on; close the connection when too much of it belongs to no request."""
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self._reads_head or self._is_unread:
            self._uncounted += len(data)
            if self._uncounted > self.max_head and not self.transport.is_closing():
                if self._is_answered:  # nothing else is being written
                    self.transport.write(_REFUSAL)
                self.transport.close()
        elif self._uncounted:
            self._uncounted = 0

    # uvicorn's annotations leave out that there is no scope and no cycle at first.

    @property
    def _reads_head(self) -> bool:
        scope: Any = self.scope
        return scope is not None and "method" not in scope

    @property
    def _current(self) -> RequestResponseCycle | None:
        return self.cycle

    @property
    def _is_answered(self) -> bool:
        return self._current is None or self.cycle.response_complete

    @property
    def _is_unread(self) -> bool:
        return self._current is not None and self.cycle.response_complete and self.cycle.more_body

    def _watch(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Close the connection unless it was heard of, or it is our answer that takes its time."""
        is_ours = not self._is_answered and not self.cycle.more_body
        silent = self.loop.time() - self._heard_at
        if is_ours or silent < self.request_timeout:
            self._watch(self.request_timeout if is_ours else self.request_timeout - silent)
        else:
            self.transport.close()
