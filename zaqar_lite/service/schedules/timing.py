"""When a schedule fires: instants by cron, by an interval, or once.

cronsim computes what cron means: as Debian's cron, a fixed wall time that the clock skips in spring
is the first instant after the gap, and one that comes twice in autumn fires at the first; with an
hour or a minute of `*` or `*/n`, real time counts. croniter does not: it leaves a day out in
spring, or fires twice in autumn, by the expression. Here each instant is strictly after the one
before, so that two wall times in one gap are one instant.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from zaqar_lite.domain.errors import Invalid

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d{1,9})([wdhms]))+")
_PART = re.compile(r"(\d{1,9})([wdhms])")
_FIELDS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
LAST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""No schedule fires later: the calendar ends."""
_LONGEST_CRON = 256
_MOST = 10 * 366 * 86_400
"""Seconds of the longest interval."""


class Cron:
    """Instants by a cron expression of five fields, in a time zone."""

    def __init__(self, expression: str, zone: str) -> None:
        self._expression = expression
        self._zone = read_zone(zone)
        if len(expression) > _LONGEST_CRON or len(expression.split()) != _FIELDS:
            raise Invalid("'cron' has five fields: minute, hour, day, month and day of the week.")
        try:
            next(self.after(0))
        except CronSimError as exc:
            raise Invalid(f"'cron' can't be read: {exc}.") from None
        except StopIteration:
            raise Invalid("'cron' never fires.") from None

    def after(self, instant: int) -> Iterator[int]:
        """The instants strictly after one, in order (milliseconds since 1970)."""
        last = instant
        try:
            start = _EPOCH + instant * _MILLISECOND
            for moment in CronSim(self._expression, start.astimezone(self._zone)):
                found = (moment - _EPOCH) // _MILLISECOND
                if found > last:
                    last = found
                    yield found
        except OverflowError:  # the calendar ends with the year 9999
            return


class Every:
    """Instants at an interval of real time, counted from an anchor (milliseconds)."""

    def __init__(self, interval_ms: int, anchor: int) -> None:
        self._interval = interval_ms
        self._anchor = anchor

    def after(self, instant: int) -> Iterator[int]:
        """The instants strictly after one, from the anchor on."""
        number = self._number_after(instant)
        while True:
            yield self._anchor + number * self._interval
            number += 1

    def skip(self, after: int, before: int, most: int) -> tuple[int, int]:
        """Pass over instants strictly after one, until at most `most` are left before another.

        Answers how many were passed over, and the instant after which the others are.
        """
        first, end = self._number_after(after), self._number_after(before - 1)
        skipped = max(end - first - most, 0)
        if not skipped:
            return 0, after
        return skipped, self._anchor + (first + skipped) * self._interval - 1

    def _number_after(self, instant: int) -> int:
        return max(0, (instant - self._anchor) // self._interval + 1)


class Once:
    """One instant."""

    def __init__(self, instant: int) -> None:
        self._instant = instant

    def after(self, instant: int) -> Iterator[int]:
        """The instant, if it is strictly after the one that is given."""
        if self._instant > instant:
            yield self._instant


Timing = Cron | Every | Once


def read_zone(name: str) -> ZoneInfo:
    """Find a time zone by its IANA name.

    Raises:
        Invalid: there is none.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise Invalid(
            f"{name[:64]!r} is not a time zone: give an IANA name, as Europe/Berlin."
        ) from None


def read_duration(value: str | int, name: str) -> int:
    """Read seconds: a number, or a text such as 90s, 15m or 1h30m.

    Raises:
        Invalid: it is neither.
    """
    if isinstance(value, int):
        seconds = value
    elif _DURATION.fullmatch(value):
        seconds = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise Invalid(f"'{name}' must be seconds, or a text such as '90s', '15m' or '1h30m'.")
    if not 0 <= seconds <= _MOST:
        raise Invalid(f"'{name}' must be between 0 and {_MOST} seconds.")
    return seconds


def jitter_ms(name: str, instant: int, jitter: int) -> int:
    """How much later than its instant a schedule fires: below `jitter` seconds, always the same."""
    if not jitter:
        return 0
    digest = sha256(f"{name}@{instant}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (jitter * 1000)
