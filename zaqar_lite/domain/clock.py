"""Instants as users write them, and the clock of the stores, which tests move by an offset."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from zaqar_lite.domain.errors import Invalid

logger = logging.getLogger(__name__)
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The instants that a calendar of the years 1 to 9999 has, in UTC."""
_TOLD_MS = 60_000
"""How far a machine may be behind its store without a word about it."""
_SETTLED_NS = 100_000_000
"""Nanoseconds after which a file's time of writing tells it from a later one."""


class Clock:
    """Tell the time in milliseconds since 1970, never going back within one process.

    Wall time at the start plus monotonic time: a wall clock that steps while the server runs
    neither cuts a lease nor hands out a delayed message early. `offset_ms` is added to every
    answer; it is 0 in production and moved by tests, so that they advance time and never sleep.
    Drivers whose store has a clock of its own add `offset_ms` to that clock's answer.
    """

    def __init__(
        self,
        *,
        offset_file: Path | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._offset_file = offset_file
        self._offset_ms = 0
        self._offset_written_at: int | None = None
        self._monotonic = monotonic
        self._base = wall() - monotonic()

    @property
    def offset_ms(self) -> int:
        """The injected offset in milliseconds; read from the offset file where one is set."""
        if self._offset_file is not None:
            return self._read_offset(self._offset_file)
        return self._offset_ms

    def now_ms(self) -> int:
        """The time now, in milliseconds since 1970, with the offset added."""
        offset_ms = self._offset_ms if self._offset_file is None else self.offset_ms
        return int((self._base + self._monotonic()) * 1000) + offset_ms

    def now_us(self) -> int:
        """The time now, in microseconds since 1970, with the offset added."""
        offset_ms = self._offset_ms if self._offset_file is None else self.offset_ms
        return int((self._base + self._monotonic()) * 1_000_000) + offset_ms * 1000

    def advance(self, milliseconds: int) -> None:
        """Move this clock's time forward (tests only)."""
        self._offset_ms += milliseconds

    def not_before(self, instant_ms: int) -> None:
        """Start from `instant_ms` where the wall clock is behind it.

        A durable store calls this once, at open, with the last instant it has seen: a machine
        whose clock was set back while the server was down must not re-open leases it gave.
        """
        behind_ms = instant_ms - self.now_ms()
        self._base += max(0, behind_ms) / 1000
        if behind_ms > _TOLD_MS:
            logger.warning(
                "this machine's clock is %d s behind the store's, which goes on from the last "
                "instant it has stored: times of day, as of schedules, come that much too early",
                behind_ms // 1000,
            )

    def _read_offset(self, path: Path) -> int:
        """Read the file again when it was written, or may have been since it was last looked at."""
        try:
            written_at = path.stat().st_mtime_ns
            if written_at != self._offset_written_at:
                self._offset_ms = int(path.read_text(encoding="ascii").strip() or "0")
                settled = time.time_ns() - written_at > _SETTLED_NS
                self._offset_written_at = written_at if settled else None
        except FileNotFoundError:
            return 0
        return self._offset_ms


def read_instant(text: str) -> int:
    """Read an instant by RFC 3339 as milliseconds since 1970.

    Raises:
        Invalid: it is none, or has no offset from UTC.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None or "T" not in text.upper():
        raise Invalid(
            f"{text[:64]!r} is not an instant: write it by RFC 3339, as 2030-01-31T08:00:00Z."
        )
    # Its offset may take it out of the calendar, and then it could not be written again.
    return min(max((instant - _EPOCH) // _MILLISECOND, _FIRST), _LAST)
