"""The counts of queues over the last hour, and their rates, of those that somebody looks at.

A queue that was looked at is counted once a minute for an hour, so that whoever looks again sees
what happened meanwhile. Nobody else's queues cost anything, and at most MOST are counted. A process
knows what was looked at through it, and its rates are of the messages that came through it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zaqar_lite.domain.models import QueueRef, Stats
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.metrics.shared_counters import Flows
from zaqar_lite.storage.base import MessageStore

MOST = 500
MINUTES = 60
_EVERY = 60.0
_RATED_MINUTES = 5
"""Over the last how many minutes rates are told."""
_LEAST = 10.0
"""Seconds that rates are of at the least."""


class Sample(NamedTuple):
    """The counts of a queue, and how many minutes ago they were taken."""

    ago: int
    ready: int
    delayed: int
    claimed: int


class Rates(NamedTuple):
    """Messages a minute that came through this process, over the last `seconds`."""

    seconds: float
    posted: float
    claimed: float
    deleted: float


class _Kept:
    """What is known of a queue: its samples, with the minutes they are of, and the last look.

    `marks` are what had come through the process at an instant of each of the last minutes.
    """

    def __init__(self) -> None:
        self.samples: deque[tuple[int, tuple[int, int, int]]] = deque(maxlen=MINUTES)
        self.marks: deque[tuple[float, Sequence[int]]] = deque(maxlen=_RATED_MINUTES + 1)
        self.looked_at = 0

    def mark(self, now: float, flow: Sequence[int]) -> None:
        """Note once a minute what has come through."""
        if not self.marks or now - self.marks[-1][0] >= _EVERY:
            self.marks.append((now, tuple(flow)))

    def add(self, minute: int, stats: Stats) -> None:
        """Keep the last counts of each minute."""
        if self.samples and self.samples[-1][0] == minute:
            self.samples.pop()
        self.samples.append((minute, (stats.ready, stats.delayed, stats.claimed)))


class RecentRates(BackgroundWorker):
    """Count what was looked at; `clock` tells seconds that never go back."""

    def __init__(self, messages: MessageStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._messages = messages
        self._clock = clock
        self._kept: dict[QueueRef, _Kept] = {}
        self.flows: Flows = {}
        """Where those who count find the queues that are looked at."""
        self._work = Background("counting what was looked at", self.sample, rest=_EVERY)

    def look(self, queue: QueueRef, stats: Stats) -> Sequence[Sample]:
        """Note what a queue holds now, and answer what it held in the last hour, oldest first."""
        minute = self._minute()
        kept = self._kept.pop(queue, None) or _Kept()
        self._kept[queue] = kept  # the one that was looked at last is the last
        if len(self._kept) > MOST:
            self._forget(next(iter(self._kept)))
        kept.mark(self._clock(), self.flows.setdefault(queue, [0, 0, 0]))
        kept.looked_at = minute
        kept.add(minute, stats)
        return [
            Sample(minute - at, *counts) for at, counts in kept.samples if minute - at < MINUTES
        ]

    def rates(self, queue: QueueRef) -> Rates | None:
        """What comes through of a queue that was looked at; None while too little is known."""
        kept = self._kept.get(queue)
        if kept is None:
            return None
        now, flow = self._clock(), self.flows[queue]
        since, then = kept.marks[0]
        if now - since < _LEAST:
            return None
        minutes = (now - since) / 60
        return Rates(now - since, *((n - m) / minutes for n, m in zip(flow, then, strict=True)))

    async def sample(self) -> None:
        """Count the queues that were looked at within the hour, and forget the others."""
        for queue in list(self._kept):
            kept = self._kept.get(queue)
            if kept is None:
                continue
            if self._minute() - kept.looked_at >= MINUTES:
                self._forget(queue)
            else:
                kept.mark(self._clock(), self.flows[queue])
                kept.add(self._minute(), await self._messages.stats(queue))
                await asyncio.sleep(0)

    def _forget(self, queue: QueueRef) -> None:
        del self._kept[queue], self.flows[queue]

    def _minute(self) -> int:
        return int(self._clock() // 60)
