"""Values of the API as a person reads them; templates have these functions as filters."""

import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from zaqar_lite.durations import duration_shown

_HORIZONS = ((1_200, 60), (7_200, 300), (43_200, 1_800), (86_400, 3_600), (1_209_600, 86_400))
"""Up to how many seconds ahead a timeline has slots of which size."""
_MOST_SLOTS, _TALLEST = 24, 60
WAITS_AGAIN = "waits to be tried again"
_LONGEST = 100_000
"""Characters of a body that a page shows."""


class Slot(NamedTuple):
    """A part of the timeline: from when to when, in seconds from now, how many, how tall."""

    begin: int
    end: int
    messages: int
    height: int


def timeline(waits: Sequence[float]) -> list[Slot]:
    """Cut the time ahead into equal parts, and count what is due in each; empty for nothing."""
    if not waits:
        return []
    longest = math.ceil(max(waits) / _MOST_SLOTS)
    size = next((size for most, size in _HORIZONS if max(waits) <= most), longest)
    counts = Counter(int(wait // size) for wait in waits)
    tallest = max(counts.values())
    return [
        Slot(n * size, (n + 1) * size, counts[n], math.ceil(_TALLEST * counts[n] / tallest))
        for n in range(max(counts) + 1)
    ]


class Spark(NamedTuple):
    """A line of what was ready in the last hour, in a box of 60 by 16; it ends at `height`."""

    points: str
    height: str
    words: str


def spark(recent: Sequence[Sequence[int]]) -> Spark | None:
    """Draw what a queue held by minute; None where that is known of one minute only."""
    if len(recent) < 2:
        return None
    ready = [one[1] for one in recent]
    most = max(*ready, 1)
    points = " ".join(f"{60 - ago},{15 - 14 * one[0] / most:.1f}" for ago, *one in recent)
    words = f"{ready[0]} ready {recent[0][0]} minutes ago, {max(ready)} at most, {ready[-1]} now"
    return Spark(points, points.rpartition(",")[2], words)


def count(number: int | None) -> str:
    """Write a count with separators, and a dash for one that is not known."""
    return "\u2013" if number is None else f"{number:,}"


def rate(a_minute: float) -> str:
    """Write how many come a minute."""
    return f"{a_minute:.0f}" if a_minute >= 10 else f"{a_minute:.2g}"


def duration(seconds: float | None) -> str:
    """Write seconds by their two largest units; nothing for None."""
    return "" if seconds is None else duration_shown(seconds)


def short(seconds: float) -> str:
    """Write a short time in milliseconds, a longer one as `duration` does."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)


def bound(seconds: float | None) -> str:
    """Write the bound that a part of all times lies under; None is beyond the last one known."""
    return "more" if seconds is None else f"≤ {short(seconds)}"


def pretty(value: Any) -> str:  # noqa: ANN401 - JSON is anything
    """Write a body over several lines; a long one is cut."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… (cut)"


def one_line(value: Any) -> str:  # noqa: ANN401
    """Write a body on one line of a table."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:119]}…"


def state(message: dict[str, Any]) -> str:
    """Say what state a listed message is in; its details are needed."""
    if "?claim_id=" in message["href"]:
        return "claimed"
    if message.get("parked_until"):
        return WAITS_AGAIN
    return "delayed" if waits(message) > 0 else "ready"


def waits(message: dict[str, Any]) -> float:
    """Return the seconds until the message's delay ends; 0 where it has none or it is over."""
    due, created = message.get("delay_expires"), message.get("created")
    if not due or not created:
        return 0
    after = dt.datetime.fromisoformat(due) - dt.datetime.fromisoformat(created)
    return max(0.0, after.total_seconds() - float(message["age"]))
