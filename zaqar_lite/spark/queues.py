"""The queues that are read: which they are, how much they hold, and when a batch is worth it.

The first 16 hex digits of a message id and of a marker are the microseconds since 1970 at which
the message was posted (or a little more, in a burst), so an instant is a marker.
"""

import datetime as dt
import re
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from zaqar_lite.client import Client, Forbidden, NotFound
from zaqar_lite.spark.options import OptionError, Options

MOST_QUEUES = 1_000
"""How many queues a pattern may match: each costs a request a batch."""
_MARKED = re.compile(r"[0-9a-f]{16}([0-9a-f]{16})?")


def named(options: Options) -> None:
    """Make sure that the options name something to read.

    Raises:
        OptionError: they name no queue.
    """
    if not options.queues and not options.queue_pattern:
        raise OptionError(
            "Name what to read: the option 'queue', 'queues' with commas, or 'queuePattern'."
        )


def queues_to_read(
    client: Client, options: Options, *, may_be_none: bool = False
) -> tuple[str, ...]:
    """Return the queues whose names match the pattern, or those that were named.

    `may_be_none` allows that no queue matches, whatever `failOnMissingQueue` says.

    Raises:
        OptionError: none is named; one that was named is missing, or nothing matches, and
            failOnMissingQueue is on; or more than `MOST_QUEUES` match.
    """
    named(options)
    pattern = options.queue_pattern
    if pattern is None:
        check_queues(client, options)
        return options.queues
    # The server looks for a part of a name, so it is asked for the longest part that is literal.
    part = max(re.split(r"\[[^]]*\]|[*?\[\]]", pattern), key=len)
    listed = client.list_queues(name=part or None)
    matching = (queue.name for queue in listed if fnmatchcase(queue.name, pattern))
    found = tuple(islice(matching, MOST_QUEUES + 1))
    if len(found) > MOST_QUEUES:
        raise OptionError(
            f"More than {MOST_QUEUES} queues match the option 'queuePattern' ({pattern!r}): "
            "make it narrower, or run several queries."
        )
    if not found and options.fail_on_missing_queue and not may_be_none:
        raise OptionError(
            f"No queue in {options.place} matches the option 'queuePattern' "
            f"({pattern!r}); say failOnMissingQueue=false to wait for the first."
        )
    return found


def check_queues(client: Client, options: Options) -> None:
    """Check that the named queues exist.

    Raises:
        OptionError: one is not, and failOnMissingQueue is on.
    """
    for queue in options.queues if options.fail_on_missing_queue else ():
        # A client that may read a queue need not be allowed to list all of them.
        with suppress(Forbidden, NotFound):
            if not client.queue_exists(queue):
                raise OptionError(
                    f"There is no queue {queue!r} in {options.place}: check the option 'queue', or "
                    "say failOnMissingQueue=false."
                )


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
    read, last = posted(marker or ""), posted(newest or "")
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

    def waits(self, count: int) -> bool:
        """Return whether a batch of `count` messages should wait; if not, restart the timer."""
        over = time.monotonic() - self._since >= self._longest
        if count < self._least and not over:
            return True
        self._since = time.monotonic()
        return False
