"""The counts of queues: of all when somebody asks, and over the last hour of those looked at.

No message is read for them.

A pass asks the store for the counts that it keeps of each queue, a few queues at once. It works a
twentieth of the time and rests for the others. It begins when a scrape finds the last pass too old,
so a server that nobody watches pays nothing. A scrape shows the last pass that ended, and its age.

A queue that was looked at is counted once a minute for an hour, so that whoever looks again sees
what happened meanwhile. Nobody else's queues cost anything, and at most MOST are counted. A process
knows what was looked at through it, and its rates are of the messages that came through it.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zaqar_lite.domain.metadata import MONITOR
from zaqar_lite.domain.models import QueueRef, Stats
from zaqar_lite.domain.subscriptions import KIND
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors, cancelled
from zaqar_lite.service.delivery.outbox import is_internal, is_pending
from zaqar_lite.service.metrics.shared_counters import Flows, SharedCounters
from zaqar_lite.service.records import all_records
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

_FRESH = 5.0
"""Seconds after which a scrape has all queues counted anew."""
MOST_SHOWN = 20
"""Queues that are shown by their oldest message, and as many by their dead letters."""
MOST_MONITORED = 100
_MARKED = 10
"""After so many passes the metadata of queues are read again, to find those with `_monitor`."""
_AT_ONCE = 16
"""Queues that are counted at once."""
_SHARE = 19
"""A pass rests so many times as long as it worked."""
_STEP = 0.01


class Depth(NamedTuple):
    """The counts of one queue; `since` is when its oldest ready message became ready, if one is."""

    ready: int
    delayed: int
    claimed: int
    since: int | None
    letters: bool

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many are ready, delayed and claimed."""
        return self.ready, self.delayed, self.claimed

    def age(self, now: int) -> float:
        """Seconds that the oldest ready message has been ready."""
        return 0.0 if self.since is None else max(0, now - self.since) / 1000


def depth_of(stats: Stats) -> Depth:
    """The counts of a queue, of its statistics."""
    oldest, since = stats.oldest, None
    if stats.ready:
        since = stats.ready_since
        if since is None and oldest is not None:
            since = max(oldest.created_at, oldest.delay_expires_at or 0)
            since = min(since, oldest.now)
    letters = oldest is not None and oldest.origin is not None
    return Depth(stats.ready, stats.delayed, stats.claimed, since, letters)


@dataclass(eq=False, repr=False)
class QueueDepths:
    """Keep the counts of all queues for all processes."""

    messages: MessageStore
    management: ManagementStore
    counters: SharedCounters

    def __post_init__(self) -> None:
        self._pass: asyncio.Task[None] | None = None
        self._passes = 0
        self._monitored: set[QueueRef] = set()

    async def stop(self) -> None:
        """End the pass that runs, if any."""
        await cancelled(self._pass)
        self._pass = None

    async def latest(self) -> dict[str, Any]:
        """The last pass; begins a new one where that is too old, and waits for it a moment."""
        found = self.counters.read()
        running = self._pass is not None and not self._pass.done()
        if not running and not 0 <= time.time() - found.get("at", 0) < _FRESH:
            self._pass = asyncio.create_task(self._run(), name="queue depths")
        if self._pass is not None:
            await asyncio.wait({self._pass}, timeout=_STEP)
        return self.counters.read()

    async def depth(self, queue: QueueRef) -> Depth:
        """The counts of one queue, now."""
        return depth_of(await self.messages.stats(queue))

    async def _run(self) -> None:
        with LoggedErrors("counting the queues"):
            await self._count()

    async def _count(self) -> None:
        begun = time.perf_counter()
        totals = [0, 0, 0]
        queues = pending = 0
        oldest: list[tuple[int, QueueRef, Depth]] = []
        letters: list[tuple[int, QueueRef, Depth]] = []
        monitored: dict[QueueRef, Depth] = {}
        reads_marks = self._passes % _MARKED == 0
        async for queue, depth, is_monitored in self._depths(reads_marks=reads_marks):
            if is_internal(queue):
                pending += sum(depth.counts) if is_pending(queue) else 0
            else:
                queues += 1
                totals = [sum(pair) for pair in zip(totals, depth.counts, strict=True)]
                if depth.since is not None:
                    _keep(oldest, (-depth.since, queue, depth))
                if depth.letters:
                    _keep(letters, (sum(depth.counts), queue, depth))
                if is_monitored and len(monitored) < MOST_MONITORED:
                    monitored[queue] = depth
        self._passes, self._monitored = self._passes + 1, set(monitored)
        subscriptions = await self._count_subscriptions()
        shown = {queue: depth for _, queue, depth in (*oldest, *letters)} | monitored
        self.counters.write(
            {
                "at": time.time(),
                "took": time.perf_counter() - begun,
                "totals": totals,
                "queues": queues,
                "subscriptions": subscriptions,
                "pending": pending,
                "since": max(oldest)[2].since if oldest else None,
                "shown": [[*queue, *depth] for queue, depth in shown.items()],
            }
        )

    async def _depths(self, *, reads_marks: bool) -> AsyncIterator[tuple[QueueRef, Depth, bool]]:
        """Count queue after queue, and tell whether each is monitored; rest in between."""
        resumed = time.perf_counter()
        async for group in _groups(self.messages.nonempty_queues()):
            counts = await asyncio.gather(*map(self.messages.stats, group))
            marks = [queue in self._monitored for queue in group]
            if reads_marks:
                marks = await asyncio.gather(*map(self._is_monitored, group))
            for queue, one, is_monitored in zip(group, counts, marks, strict=True):
                yield queue, depth_of(one), is_monitored
            resumed = await _rested(resumed)

    async def _count_subscriptions(self) -> int:
        count, resumed = 0, time.perf_counter()
        async for _ in all_records(self.management, KIND):
            count += 1
            resumed = await _rested(resumed)
        return count

    async def _is_monitored(self, queue: QueueRef) -> bool:
        if is_internal(queue):
            return False
        record = await self.management.get_queue(queue)
        return record is not None and record.metadata.get(MONITOR) is True


async def _rested(resumed: float) -> float:
    """Rest from the work since `resumed`, if it was long; answer since when it goes on."""
    worked = time.perf_counter() - resumed
    if worked < _STEP:
        return resumed
    await asyncio.sleep(worked * _SHARE)
    return time.perf_counter()


async def _groups(queues: AsyncIterator[QueueRef]) -> AsyncIterator[list[QueueRef]]:
    """Queues that are counted together."""
    group: list[QueueRef] = []
    async for queue in queues:
        group.append(queue)
        if len(group) == _AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _keep(best: list[tuple[int, QueueRef, Depth]], found: tuple[int, QueueRef, Depth]) -> None:
    """Keep what was found, if it is among the largest."""
    if len(best) < MOST_SHOWN:
        heapq.heappush(best, found)
    elif found > best[0]:
        heapq.heapreplace(best, found)


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

    looked_at: int

    def __init__(self) -> None:
        self.samples: deque[tuple[int, tuple[int, int, int]]] = deque(maxlen=MINUTES)
        self.marks: deque[tuple[float, Sequence[int]]] = deque(maxlen=_RATED_MINUTES + 1)

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
