"""What can still be read of a range of keys in which blocks of SlateDB are damaged.

A read that meets a damaged block fails as a whole, and nothing tells where the block begins or
ends. But a block is a contiguous range of keys, so both are found by trying: keys are taken as
numbers of a fixed width, and ranges between them are read. SlateDB looks a row or two ahead, so
what lies just before a damaged block is got only by a read that ends there.

A search goes away from what is known in steps that grow, then narrows down, then takes longer
keys until that changes nothing. So what lies close decides, and a second damaged block further on
does not hide what is between them. Blocks whose keys are spread very unevenly may be taken together
with intact ones between them: all of that is named as damaged then, never left out silently.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

Pair: TypeAlias = tuple[bytes, bytes]
Read: TypeAlias = Callable[[bytes, bytes, int], Awaitable[Sequence[Pair] | None]]
"""Read rows from a key up to, not including, another, at most so many: None if one is damaged."""
_Test: TypeAlias = Callable[[bytes, bytes], Awaitable[bool]]
"""Whether a search has arrived at a key; the second one is the next that is tried."""

MOST_PROBES = 20_000
"""Reads of one scan that look for the ends of damage; what lies behind is given up then."""
MOST_SECONDS = 60.0
_AT_ONCE = 8
_AHEAD = 8  # rows: more than SlateDB looks ahead
_LONGER = 8  # bytes


class Gap(NamedTuple):
    """Damage: the rows just before it, the first key behind it, and the key of the row there.

    That is empty where no row is left, and None where all up to the end of the range is damaged.
    """

    before: Sequence[Pair]
    behind: bytes
    row: bytes | None


class Salvage:
    """The search for damaged blocks in one scan, within what it may cost."""

    def __init__(self, read: Read, end: bytes) -> None:
        self._read = read
        self._end = end
        self._probes = 0
        self._until = time.monotonic() + MOST_SECONDS

    async def find(self, low: bytes) -> Gap:
        """Find the first damage from `low` on, which lies a row or two before it."""

        async def breaks(key: bytes, _: bytes) -> bool:
            return await self._probe(low, key, _AHEAD) is None

        begins, _ = await self._search(low, breaks)
        _, ends = await self._search(begins, self._is_readable)
        before = await self._probe(low, begins, _AHEAD)
        # A number stands for all keys that differ by zeros at the end: the shortest is the first.
        for length in range(len(ends.rstrip(b"\x00")), len(ends) + 1):
            behind = ends[:length]
            row = await self._row(behind, ends + b"\x00")
            if row is not None:
                return Gap(before or (), behind, row)
        return Gap(before or (), self._end, None)

    async def _is_readable(self, key: bytes, following: bytes) -> bool:
        return await self._row(key, following) is not None

    async def _row(self, key: bytes, following: bytes) -> bytes | None:
        """The key of the first row from a key on, b"" if there is none; None if it is damaged."""
        if key >= self._end:
            return None
        rows = await self._probe(key, self._end, 1)
        if rows is not None:
            return rows[0][0] if rows else b""
        rows = await self._probe(key, following, _AHEAD)  # a few rows before other damage
        return rows[0][0] if rows else None

    async def _search(self, low: bytes, has_arrived: _Test) -> tuple[bytes, bytes]:
        """Find the first key behind `low` at which a test holds, as it does at the end.

        Answers the key before it, and it.
        """
        width = len(low) + _LONGER
        below, above = await self._go_away(_number(low, width), width, has_arrived)
        below, above = await self._narrow(below, above, width, has_arrived)
        while not self._is_spent:
            before, after = self._key(below, width), self._key(above, width)
            padded = before + bytes(_LONGER)
            if await has_arrived(padded, after):  # only zeros lie between
                return before, padded
            width += _LONGER
            longer = above << 8 * _LONGER
            below, above = await self._narrow(below << 8 * _LONGER, longer, width, has_arrived)
            if above == longer:
                break
        return self._key(below, width), self._key(above, width)

    async def _go_away(self, low: int, width: int, has_arrived: _Test) -> tuple[int, int]:
        """Grow the distance by half and by half until the test holds; answer the last two keys."""
        end, step, below = _number(self._end, width), 2, low
        while low + step < end and not self._is_spent:
            octaves = [step << shift for shift in range(_AT_ONCE // 2)]
            points = [low + part for size in octaves for part in (size, size + size // 2)]
            points.append(low + 2 * octaves[-1])
            for point, found in zip(
                points, await self._try(points, width, has_arrived), strict=False
            ):
                if point >= end:
                    break
                if found:
                    return below, point
                below = point
            step = 2 * octaves[-1]
        return below, end

    async def _narrow(
        self, below: int, above: int, width: int, has_arrived: _Test
    ) -> tuple[int, int]:
        """Bring a key where the test fails and one where it holds side by side."""
        while above - below > 1 and not self._is_spent:
            parts = min(_AT_ONCE, above - below)
            points = [below + (above - below) * part // parts for part in range(1, parts + 1)]
            for point, found in zip(
                points, await self._try(points, width, has_arrived), strict=False
            ):
                if found:
                    above = point
                    break
                below = point
        return below, above

    async def _try(self, points: Sequence[int], width: int, has_arrived: _Test) -> list[bool]:
        """Test all keys but the last, which ends the one before it."""
        named = [self._key(point, width) for point in points]
        return await asyncio.gather(
            *(has_arrived(key, named[index + 1]) for index, key in enumerate(named[:-1]))
        )

    @property
    def _is_spent(self) -> bool:
        return self._probes >= MOST_PROBES or time.monotonic() > self._until

    async def _probe(self, start: bytes, end: bytes, limit: int) -> Sequence[Pair] | None:
        if start >= end:
            return ()
        self._probes += 1
        return await self._read(start, end, limit)

    def _key(self, number: int, width: int) -> bytes:
        if number.bit_length() > 8 * width:
            return self._end
        return min(number.to_bytes(width, "big"), self._end)


def _number(key: bytes, width: int) -> int:
    return int.from_bytes(key[:width].ljust(width, b"\x00"), "big")
