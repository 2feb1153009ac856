"""Durations as people write and read them: 30s, 5m, 1h30m; plain numbers are seconds."""

import math
import re

_DAY = 86400.0
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY, "y": 365 * _DAY}
_LONGEST = 64
"""Characters of a duration: the time to read a text grows with the square of its length."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w|y)")


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as 30s, 5m or 1h30m; a plain number is seconds.

    Raises:
        ValueError: the text is no duration.
    """
    if len(text) > _LONGEST:
        message = f"{text[:_LONGEST]!r}... is no duration"
        raise ValueError(message)
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * UNITS[unit] for number, unit in parts)
    number = float(text)
    if not 0 <= number < math.inf:
        message = f"{text!r} is no duration"
        raise ValueError(message)
    return number


def duration_shown(seconds: float) -> str:
    """Return a duration for a person, by its two largest units."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left = round(seconds)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(UNITS[unit]))
        if count or (parts and left):
            parts.append(f"{count}{unit}")
    return "".join(part for part in parts[:2] if not part.startswith("0")) or "0s"
