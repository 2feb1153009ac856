"""The lag of a stream, when it begins a batch, and the marker that stands for an instant.

The first 16 hex digits of a message id and of a marker are the microseconds since 1970 at which
the message was posted (or a little more, in a burst), so an instant is a marker.
"""

import datetime as dt
import re
import time
from typing import Any

from zaqar_lite.client import Client
from zaqar_lite.spark.options import Options

_MARKED = re.compile(r"[0-9a-f]{16}([0-9a-f]{16})?")


def marker_at(instant: str) -> str:
    """Return the marker before the first message that was posted at an instant or later."""
    at = dt.datetime.fromisoformat(instant)
    at = at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)
    since_1970 = at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return f"{max(0, since_1970 // dt.timedelta(microseconds=1) - 1):016x}"


def posted(marker: str) -> int | None:
    """Return when a message was posted, in microseconds since 1970; None of another server's id."""
    return int(marker[:16], 16) if _MARKED.fullmatch(marker) else None


def lag_of(client: Client, queue: str, marker: str | None) -> dict[str, Any]:
    """Count a queue, and say how old its oldest message is and how far behind the marker is.

    `lag_seconds` is the time from the last message that was read to the newest; null before the
    first.
    """
    stats = client.stats(queue)
    newest = None if stats.newest is None else stats.newest.message_id
    behind = None
    if marker and newest is not None:
        read, last = posted(marker), posted(newest)
        behind = None if read is None or last is None else max(0, last - read) / 1_000_000
    return {
        "total": stats.total,
        "ready": stats.claimable,
        "claimed": stats.claimed,
        "delayed": stats.delayed,
        "oldest_age": None if stats.oldest is None else stats.oldest.age,
        "newest": newest,
        "lag_seconds": behind,
    }


class BatchTrigger:
    """Wait for a batch of `minMessagesPerTrigger`, up to `maxTriggerDelay` after the last one."""

    def __init__(self, options: Options) -> None:
        self._least = options.min_messages_per_trigger
        self._longest = options.max_trigger_delay
        self._since = time.monotonic()

    def waits(self, count: int, *, frozen: bool) -> bool:
        """Return whether a batch of `count` messages should wait; if not, restart the timer."""
        over = time.monotonic() - self._since >= self._longest
        if count < self._least and not over and not frozen:
            return True
        self._since = time.monotonic()
        return False
