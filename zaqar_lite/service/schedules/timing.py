"""When a schedule fires: instants by cron, by an interval, or once.

cronsim computes what cron means: as Debian's cron, a fixed wall time that the clock skips in spring
is the first instant after the gap, and one that comes twice in autumn fires at the first; with an
hour or a minute of `*` or `*/n`, real time counts. croniter does not: it leaves a day out in
spring, or fires twice in autumn, by the expression. Here each instant is strictly after the one
before, so that two wall times in one gap are one instant.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import check_range
from zaqar_lite.durations import seconds_of

_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31, or L for the last",
    "month": "1 to 12, or JAN to DEC",
    "day of the week": "0 to 7 with 0 and 7 for Sunday, or SUN to SAT",
}
"""The fields of a cron expression in their order, and what each may hold."""
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
LAST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""No schedule fires later: the calendar ends."""
_LONGEST_CRON = 256
_SHOWN = 64
"""Characters of what a client has sent that an error shows."""
_MOST = 10 * 366 * 86_400
"""Seconds of the longest interval."""


class Cron:
    """Instants by a cron expression of five fields, or by a name such as @daily, in a time zone."""

    def __init__(self, expression: str, zone: str) -> None:
        self._expression = _read_expression(expression)
        self._zone = read_zone(zone)
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


def _read_expression(text: str) -> str:
    """The five fields that a text stands for, each of which can be read.

    Raises:
        Invalid: names the field that is wrong, its text, and what it may be.
    """
    name = text.strip().lower()
    if name == "@reboot":
        raise Invalid(
            "'cron' can't be @reboot: a schedule belongs to the store, which outlives every start "
            "of a server, so no instant is its boot. To post once, give 'at'."
        )
    if name.startswith("@") and name not in _NAMED:
        raise Invalid(f"'cron' may be one of {', '.join(_NAMED)}; it is {text[:_SHOWN]!r}.")
    expression = _NAMED.get(name, text)
    fields = expression.split()
    if len(expression) > _LONGEST_CRON or len(fields) != len(_FIELDS):
        raise Invalid(
            f"'cron' has five fields: {', '.join(_FIELDS)}; it has {len(fields)} in "
            f"{len(expression)} characters, of which {_LONGEST_CRON} are allowed."
        )
    for place, (field, allowed) in enumerate(_FIELDS.items()):
        alone = ["*"] * len(_FIELDS)
        alone[place] = fields[place]
        try:
            CronSim(" ".join(alone), _EPOCH)
        except CronSimError:
            raise Invalid(
                f"The {field} of 'cron' is {fields[place][:_SHOWN]!r}; it may be {allowed}, or *, "
                "with lists (1,2), ranges (1-5) and steps (*/2) of these."
            ) from None
    return expression


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
        return skipped, self._anchor + (first + skipped - 1) * self._interval

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


def read_duration(value: str | int, name: str, most: int = _MOST) -> int:
    """Read seconds, up to `most`: a number, or a text such as 90s, 15m or 1h30m.

    Raises:
        Invalid: it is neither, or more.
    """
    try:
        seconds = value if isinstance(value, int) else seconds_of(value)
    except ValueError:
        raise Invalid(
            f"'{name}' must be seconds, or a text such as '90s', '15m' or '1h30m'."
        ) from None
    check_range(f"'{name}'", seconds, 0, most, " seconds")
    return int(seconds)


def jitter_ms(name: str, instant: int, jitter: int) -> int:
    """How much later than its instant a schedule fires: below `jitter` seconds, always the same."""
    if not jitter:
        return 0
    digest = sha256(f"{name}@{instant}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (jitter * 1000)
