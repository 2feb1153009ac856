"""Durations as people write them (30s, 5m, 1h30m; plain numbers are seconds), and instants."""

import argparse
import datetime as dt

from zaqar_lite.searching import UNITS
from zaqar_lite.searching import seconds_of as parse


def whole_seconds(text: str) -> int:
    """Read a duration that the server counts in whole seconds, for argparse."""
    try:
        seconds = parse(text)
    except ValueError:
        seconds = 0.5
    if seconds != int(seconds):
        message = f"a duration such as 30s, 5m, 1h, or whole seconds is needed, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(seconds)


def seconds_above_zero(text: str) -> float:
    """Read a duration that is not nothing, for argparse."""
    try:
        seconds = parse(text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        message = f"a duration above 0, such as 0.5s, 5m, 1h, or seconds is needed, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return seconds


def shown(seconds: float) -> str:
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


def signed_seconds(text: str) -> int:
    """Read a duration that may be below 0, for argparse."""
    return -whole_seconds(text[1:]) if text.startswith("-") else whole_seconds(text)


def instant(text: str) -> dt.datetime:
    """Read a point in time, for argparse; one without a zone is in this machine's."""
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        message = f"a time such as 2030-12-24T18:00 or 2030-12-24T18:00Z is needed, not {text!r}"
        raise argparse.ArgumentTypeError(message) from None
    return at if at.tzinfo is not None else at.astimezone()
