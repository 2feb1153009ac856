"""Requests that wait until a queue has messages, first come, first served, without polling.

A waiter asks the store once, joins the line of its queue, asks again if it is the first there, and
then sleeps. It is woken by the store's hint that messages became ready, when a message becomes due,
or by a poll in case a hint was lost. n messages wake at most n claimers, in the order in which they
came; one that finds nothing keeps its place, and one that is woken and goes wakes the next. A timer
wakes the first claimer, and each one that finds something wakes the next. Readers are all woken,
and take no claimer's turn. A waiter holds no connection of the store, no thread and no claim.

A queue stays watched for a moment after its last waiter, so a consumer that comes back asks once.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import uniform
from typing import TypeVar

from zaqar_lite.domain.errors import QuotaReached, TooMany, Unavailable
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.quotas import QuotaOf, unlimited
from zaqar_lite.service.background import LoggedErrors
from zaqar_lite.service.quotas.concurrency_limits import ConcurrencyLimit
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.watchers import Watch

T = TypeVar("T")
_LEAST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two alarms; doubled each time nothing was found although it was due."""
_BEHIND = 0.002
"""Seconds after the due time at which an alarm rings: event streams count it due 1 ms later."""
LINGER = 1.0
"""Seconds for which a queue stays watched when nobody waits any more."""


class Waiter:
    """A request that waits: a claimer, which has its turn, or a reader.

    Its holder must call `leave` at the end.
    """

    def __init__(self, polling: "LongPolling", line: "_Line", *, reads: bool) -> None:
        self._polling, self.line = polling, line
        self.reads = reads
        self.hinted = False  # by its line, and it has not asked since
        self.counted = False  # woken by a hint that woke one waiter for each message already
        self._woken = asyncio.Event()
        self._waits = False

    @property
    def sleeps(self) -> bool:
        """Whether it waits, and was not woken."""
        return self._waits and not self._woken.is_set()

    def ask(self) -> None:
        """Note that the store is asked now: what comes from now on ends the next sleep."""
        self._woken.clear()
        self.hinted = False

    def wake(self) -> None:
        """End its sleep, or the next one where it is asking: the answer may be out of date."""
        self._woken.set()

    async def sleep(self, seconds: float) -> bool:
        """Sleep until something came, the client has gone or the server stops; at most `seconds`.

        Returns whether it was woken before that time.
        """
        self._waits = True
        try:
            async with asyncio.timeout(max(seconds, 0)):
                return await self._woken.wait()
        except TimeoutError:
            return False
        finally:
            self._waits = False

    async def leave(self) -> None:
        """Leave the line."""
        await self._polling.remove(self)


class _Line:
    """The waiters of one queue in the order in which they came, and the task of their alarm.

    A waiter joins when the queue is `watched`: from then on it misses nothing.
    """

    def __init__(self, queue: QueueRef) -> None:
        self.queue = queue
        self.waiters: dict[Waiter, None] = {}
        self.alarm: asyncio.Task[None] | None = None
        self.watch: Watch | None = None
        self.rings_at = math.inf  # the alarm, on the clock of the loop
        self.hints = 0  # that came since the queue is watched
        self.end: asyncio.TimerHandle | None = None
        self.watched = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def first(self) -> Waiter | None:
        """The claimer that came first."""
        return next((one for one in self.waiters if not one.reads), None)

    def ring_soon(self) -> None:
        """Have the alarm ring within a second: who was woken could not ask, and the next one may.

        Not at once: where the store is away, that would end all waits one after the other.
        """
        self.rings_at = min(self.rings_at, asyncio.get_running_loop().time() + _LONGEST_PAUSE)
        self.changed.set()

    def announced(self, count: int) -> None:
        """Wake waiters by a hint of the store (see `Listener`)."""
        self.hints += 1
        if count:
            self.wake(abs(count), counted=count > 0)
        self.changed.set()

    def wake(self, count: int, *, counted: bool = False) -> None:
        """Wake the first `count` sleeping claimers, else those that ask, and all readers.

        Where these are too few, each one that finds something wakes the next.
        """
        awake: list[Waiter] = []
        for waiter in self.waiters:
            if waiter.reads:
                waiter.wake()
            elif count > 0 and waiter.sleeps:
                waiter.hinted, waiter.counted = True, counted
                waiter.wake()
                count -= 1
            elif count > 0 and not waiter.hinted:
                awake.append(waiter)
        for waiter in awake[:count]:  # its answer may be from before the hint
            waiter.hinted, waiter.counted = True, waiter.counted and counted
            waiter.wake()
        if count > len(awake):
            for waiter in self.waiters:
                waiter.counted = False


@dataclass(eq=False, repr=False)
class LongPolling:
    """Lets requests wait for messages: at most `most` in this process, `most_per_project` of each.

    `limit` holds a project's waiters in all processes together to its quota.
    """

    messages: MessageStore
    most: int
    most_per_project: int
    quota_of: QuotaOf = unlimited
    limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit("waiters"))

    def __post_init__(self) -> None:
        self._lines: dict[QueueRef, _Line] = {}
        self.is_closed = False
        """Whether waiting has ended because the server stops."""

    def close(self) -> None:
        """End all waits at once, and let no request wait from now on."""
        self.is_closed = True
        for line in list(self._lines.values()):
            for waiter in line.waiters:
                waiter.wake()
            self._end(line)

    async def until_found(
        self,
        queue: QueueRef,
        seconds: float,
        ask: Callable[[], Awaitable[T | None]],
        *,
        gone: asyncio.Future[None],
        reads: bool = False,
    ) -> T | None:
        """Call `ask` until it returns something; None after `seconds` or if the client has gone.

        Raises:
            TooMany: too many wait already, of this project or in this process.
            QuotaReached: as many wait as the project's quota allows.
        """
        line, asked = self._lines.get(queue), None
        if reads or line is None or line.first is None:
            asked = (line, line.hints) if line is not None and line.watch else None
            found = await ask()
            if found is not None or seconds <= 0 or self.is_closed:
                return found
        deadline = asyncio.get_running_loop().time() + seconds
        waiter = await self.join(queue, gone, reads=reads, seconds=seconds)
        try:
            asks = reads or waiter.line.first is waiter
            asks = asks and asked != (waiter.line, waiter.line.hints)
            found = await self._wait(waiter, ask, deadline, gone, asks)
        finally:
            await waiter.leave()
        if found is not None and not (reads or waiter.counted):
            waiter.line.wake(1)  # there may be more than it could take
        return found

    async def join(
        self,
        queue: QueueRef,
        gone: asyncio.Future[None],
        *,
        reads: bool = True,
        seconds: float | None = None,
    ) -> Waiter:
        """Join a queue's line, for several waits; the first starts the alarm and the hints.

        That takes up to a second where the store is silent, and at most `seconds`.

        Raises:
            TooMany: too many wait already, of this project or in this process.
            QuotaReached: as many wait as the project's quota allows.
        """
        await self._take_permit(queue.project)
        line = self._lines.setdefault(queue, _Line(queue))
        waiter = Waiter(self, line, reads=reads)
        gone.add_done_callback(lambda _: waiter.wake())
        line.waiters[waiter] = None
        if line.end is not None:
            line.end.cancel()
        line.changed.set()
        if line.alarm is None:
            line.alarm = asyncio.create_task(self._watch(line), name="alarm")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await line.watched.wait()
        except BaseException:
            await waiter.leave()
            raise
        return waiter

    async def _wait(
        self,
        waiter: Waiter,
        ask: Callable[[], Awaitable[T | None]],
        deadline: float,
        gone: asyncio.Future[None],
        asks: bool,
    ) -> T | None:
        """Call `ask` in this waiter's turns until it returns something; None at the deadline."""
        time = asyncio.get_running_loop().time
        while not (gone.done() or self.is_closed):
            if asks:
                waiter.ask()
                try:
                    found = await ask()
                except BaseException:
                    waiter.line.ring_soon()
                    raise
                if found is not None:
                    return found
            left = deadline - time()
            if left <= 0 or gone.done() or self.is_closed:
                return None
            await waiter.sleep(left)
            asks = True
        return None

    async def _take_permit(self, project: str) -> None:
        if self.limit.count_of(project) >= self.most_per_project:
            raise TooMany(
                f"{self.most_per_project} requests of this project wait already: let one request "
                "claim more messages, or wait less long."
            )
        if self.limit.count >= self.most:
            raise TooMany("Too many requests wait on this server already.")
        quota = self.quota_of(project).waiters
        if not await self.limit.take(project, quota):
            raise QuotaReached(f"{quota} requests that wait", "do not wait")

    async def remove(self, waiter: Waiter) -> None:
        """Let a waiter leave its line; soon after the last one the alarm and the hints end."""
        line = waiter.line
        del line.waiters[waiter]
        self.limit.leave(line.queue.project)
        if waiter.hinted:  # the next one asks
            line.wake(1, counted=waiter.counted)
        if not line.waiters:
            # No more queues stay watched than requests may wait, however fast they come and go.
            ends_now = self.is_closed or len(self._lines) > self.most
            pause = 0.0 if ends_now else LINGER
            line.end = asyncio.get_running_loop().call_later(pause, self._end, line)

    def _end(self, line: _Line) -> None:
        """End a line, unless somebody waits."""
        if not line.waiters and self._lines.get(line.queue) is line:
            del self._lines[line.queue]
            if line.alarm is not None:
                line.alarm.cancel()

    async def _watch(self, line: _Line) -> None:
        """Have a queue's waiters woken by hints and by time, until they have left."""
        errors = LoggedErrors("waking who waits for messages")
        try:
            while True:
                with errors:
                    await self._ring(line)
                line.watched.set()
                await asyncio.sleep(_LONGEST_PAUSE)
                line.wake(1)
        finally:
            line.watched.set()
            if line.watch is not None:
                line.watch.end()

    async def _ring(self, line: _Line) -> None:
        """Wake one waiter whenever a message is due, or a hint may have been lost."""
        least, time = _LEAST_PAUSE, asyncio.get_running_loop().time
        while True:
            line.changed.clear()
            while not line.waiters:
                line.rings_at = math.inf
                await line.changed.wait()
                line.changed.clear()
            pause = self.messages.poll_interval_ms / 1000 * uniform(0.8, 1.2)  # noqa: S311 - jitter
            due = await self._due_in(line)
            if due is None or due >= least:
                least = _LEAST_PAUSE
            # An alarm that was set rings even if what it was set for is ready by now.
            if due is not None:
                line.rings_at = min(line.rings_at, time() + max(due + _BEHIND, least))
            try:
                async with asyncio.timeout(min(pause, max(line.rings_at - time(), 0.0))):
                    await line.changed.wait()
                least = _LEAST_PAUSE
            except TimeoutError:
                line.wake(1)
                line.rings_at = math.inf
                if due is not None and due < least:
                    least = min(2 * least, _LONGEST_PAUSE)

    async def _due_in(self, line: _Line) -> float | None:
        """Seconds until something is due; watches the queue first, unless that is so already."""
        try:
            if line.watch is None:
                line.watch = await self.messages.watch(line.queue, line.announced)
                line.watched.set()
            due_ms = await line.watch.next_due()
        except Unavailable:  # without hints the safety poll goes on, and watches again
            line.watched.set()
            return None
        return None if due_ms is None else due_ms / 1000
