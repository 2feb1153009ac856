"""Frames of a WebSocket that are too large: passed over, so that the connection can go on.

The library's parser closes the connection on such a frame, since it would have to keep it whole.
Here only its head is kept; the client gets an answer, as upstream's clients do.
"""

from collections.abc import Iterator
from typing import NamedTuple

MOST_DISCARDED = 16_777_216
"""Bytes of a frame that are passed over; at a larger one the parser closes the connection."""
_WHOLE = {0x81: False, 0x82: True}
"""The first byte of a text and of a binary frame that is a message of its own."""


class Oversized(NamedTuple):
    """A frame that was passed over: how many bytes it had, and whether it was binary."""

    size: int
    binary: bool


class FrameFilter:
    """Take the frames above `largest` bytes out of what arrives on a connection.

    A message in several frames is passed on whatever its size, as is what is no frame: the parser
    bounds both by closing the connection.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._held = b""
        self._left = 0
        self._oversized: Oversized | None = None

    def split(self, data: bytes) -> Iterator[bytes | Oversized]:
        """Give what the parser shall get, and each frame that it shall not, in their order."""
        if self._held:
            data, self._held = self._held + data, b""
        start = at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                at, self._left = at + step, self._left - step
            if self._oversized is not None:
                start = at
                if not self._left:
                    yield self._oversized
                    self._oversized = None
            if self._left or at == len(data):
                break
            length = _length(data, at)
            if length is None:
                self._held = data[at:]
                break
            head, self._left = length
            if self._largest < self._left <= MOST_DISCARDED and data[at] in _WHOLE:
                if start < at:
                    yield data[start:at]
                self._oversized = Oversized(self._left, _WHOLE[data[at]])
                start = at + head
            at += head
        if start < at:
            yield data[start:at]


def _length(data: bytes, at: int) -> tuple[int, int] | None:
    """How many bytes the head of a frame has, and its payload; None while the head is cut off."""
    if len(data) < at + 2:
        return None
    masked, length = data[at + 1] & 0x80, data[at + 1] & 0x7F
    extended = {126: 2, 127: 8}.get(length, 0)
    head = 2 + extended + (4 if masked else 0)
    if len(data) < at + head:
        return None
    if extended:
        length = int.from_bytes(data[at + 2 : at + 2 + extended], "big")
    return head, length
