"""Server-sent events, as the WHATWG's standard has them read; no socket is known here."""

from collections.abc import Iterator
from typing import NamedTuple

LONGEST_SILENCE = 60.0
"""Seconds after which a stream is taken for dead: the server says every 15 that it lives."""
PAUSE = 1.0
"""Seconds between the end of a stream and the next."""
_MOST = 64 << 20
"""The most bytes of one event; a longer one is not from a Zaqar Lite server."""


class Event(NamedTuple):
    """One event, or the news that an id has moved: then there is no data."""

    id: str | None
    data: bytes | None


class EventParser:
    """Cut a stream into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._id: str | None = None
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[Event]:
        """Take a part of the stream; yield the events that are whole.

        Raises:
            ValueError: an event does not end.
        """
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").split(b"\n")
        if len(self._rest) > _MOST:
            message = "an event of the stream does not end"
            raise ValueError(message)
        for line in lines:
            if not line:
                if self._data or self._id is not None:
                    yield Event(self._id, b"\n".join(self._data) if self._data else None)
                self._id, self._data = None, []
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
