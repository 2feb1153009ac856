"""Where reading goes on behind a damaged block of SlateDB.

A read that meets a damaged block fails as a whole, and nothing tells where the block ends. But it
is a range of keys, so its end is found by trying: keys are taken as numbers of one width, the steps
grow until a read succeeds, and are halved then, for keys that get longer. Damaged blocks that lie
close together may be taken as one, with what is intact between them: all of that is named.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from zaqar_lite.storage.opendata.engine import Damage, Row

First: TypeAlias = Callable[[bytes], Awaitable[bytes | None]]
"""The key of the first row from a key on, b"" if there is none, None if it can't be read."""
MOST_SECONDS = 60.0
"""What one search may take; all up to the end of the range is given up then."""
_LONGER = 8


async def find_behind(start: bytes, end: bytes, first: First) -> tuple[bytes, bytes]:
    """Find where reading goes on; answer that key, and the key of the row there, b"" for none."""
    width = len(start) + _LONGER
    until = time.monotonic() + MOST_SECONDS
    low, step = _number(start, width), 2
    last = _number(end, width)
    high = low + step
    while high < last and await first(_key(high, width)) is None:
        if time.monotonic() > until:
            return end, b""
        low, step = high, 2 * step
        high = low + step
    high = min(high, last)
    while time.monotonic() < until:
        while high - low > 1:
            middle = (low + high) // 2
            if await first(_key(middle, width)) is None:
                low = middle
            else:
                high = middle
        shorter, width = high, width + _LONGER
        low, high = low << 8 * _LONGER, high << 8 * _LONGER
        if await first(_key(high - 1, width)) is None:  # longer keys lead no nearer
            low, high, width = shorter - 1, shorter, width - _LONGER
            break
    behind = min(_key(high, width), end)
    # A number stands for all keys that differ by zeros at the end: the shortest is the first.
    for length in range(len(behind.rstrip(b"\x00")), len(behind)):
        if start < behind[:length] < end:
            row = await first(behind[:length])
            if row is not None:
                return behind[:length], row
    return behind, (await first(behind) or b"") if behind < end else b""


def lost(start: bytes, until: bytes, why: str) -> Row:
    """What can't be read of a range, named by the row before it: such a range begins with a zero.

    It ends before the key `until`, or with the last record if that is empty.
    """
    last = start.removesuffix(b"\x00")
    return last, Damage(last, why, until)


def _number(key: bytes, width: int) -> int:
    return int.from_bytes(key[:width].ljust(width, b"\x00"), "big")


def _key(number: int, width: int) -> bytes:
    return number.to_bytes(width, "big")
