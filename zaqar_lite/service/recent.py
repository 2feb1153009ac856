"""The counts of queues over the last hour, of those that somebody looks at.

A queue that was looked at is counted once a minute for an hour, so that whoever looks again sees
what happened meanwhile. Nobody else's queues cost anything, and at most MOST are counted. A process
knows what was looked at through it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zaqar_lite.domain.models import QueueRef, Stats
from zaqar_lite.service.background import Background
from zaqar_lite.storage.base import MessageStore

MOST = 500
MINUTES = 60
_EVERY = 60.0


class Sample(NamedTuple):
    """The counts of a queue, and how many minutes ago they were taken."""

    ago: int
    ready: int
    delayed: int
    claimed: int


class _Kept:
    """What is known of a queue: its samples, with the minutes they are of, and the last look."""

    __slots__ = ("looked_at", "samples")

    def __init__(self) -> None:
        self.samples: deque[tuple[int, Stats]] = deque(maxlen=MINUTES)
        self.looked_at = 0

    def add(self, minute: int, stats: Stats) -> None:
        """Keep the last counts of each minute."""
        if self.samples and self.samples[-1][0] == minute:
            self.samples.pop()
        bare = Stats(ready=stats.ready, delayed=stats.delayed, claimed=stats.claimed)
        self.samples.append((minute, bare))


class Recent:
    """Count what was looked at; `clock` tells seconds that never go back."""

    def __init__(self, messages: MessageStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._messages = messages
        self._clock = clock
        self._kept: dict[QueueRef, _Kept] = {}
        self._work = Background("counting what was looked at", self._sample, rest=_EVERY)

    def start(self) -> None:
        """Begin to count, in a task of the running event loop."""
        self._work.start()

    async def stop(self) -> None:
        """End it."""
        await self._work.stop()

    def look(self, queue: QueueRef, stats: Stats) -> Sequence[Sample]:
        """Note what a queue holds now, and answer what it held in the last hour, oldest first."""
        minute = self._minute()
        kept = self._kept.pop(queue, None) or _Kept()
        self._kept[queue] = kept  # the one that was looked at last is the last
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        kept.looked_at = minute
        kept.add(minute, stats)
        return [
            Sample(minute - at, one.ready, one.delayed, one.claimed)
            for at, one in kept.samples
            if minute - at < MINUTES
        ]

    async def sample(self) -> None:
        """Count the queues that were looked at within the hour, and forget the others."""
        for queue in list(self._kept):
            kept = self._kept.get(queue)
            if kept is None:
                continue
            if self._minute() - kept.looked_at >= MINUTES:
                del self._kept[queue]
            else:
                kept.add(self._minute(), await self._messages.stats(queue))
                await asyncio.sleep(0)

    def _minute(self) -> int:
        return int(self._clock() // 60)

    async def _sample(self) -> float:
        await self.sample()
        return _EVERY
