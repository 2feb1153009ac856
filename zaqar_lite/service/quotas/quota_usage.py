"""Hold projects to their quotas of messages and bytes, by counting from time to time.

A count asks each queue of a project for its statistics. So only projects with such a quota are
counted, at most every five seconds and for at most a tenth of the time. The count starts after a
post, or before it if the last count is more than ten seconds old. Between two counts, what this
process posts is added and nothing is subtracted. So before a post is refused, the project is
counted again, at most once a second.

Posts of other processes are not seen until the next count. So where processes share a store, each
of them posts at most an eighth of the room that its last count found, or one post, before it counts
again. P processes thus exceed a quota by (P - 1) / 8 of it at most, or by P - 1 posts, and by what
was being stored during a count. If a count takes longer than _QUICK, it is not repeated so often:
then each process may post all the room that its last count found.

No store counts bytes, so they are estimated. This process knows the sizes of its own posts in their
order. Messages of other processes are assumed to be as large as those at both ends of the queues,
and the messages gone since the last count to be the oldest ones. If messages leave in the order in
which they came, the sum is right, and an error in it leaves with the messages that caused it.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from zaqar_lite.domain.errors import QuotaReached, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import Stats
from zaqar_lite.domain.posts import Posted
from zaqar_lite.domain.quotas import Quota, QuotaOf
from zaqar_lite.service.background import cancelled
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas.concurrency_limits import ConnectionLimits
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
COUNT_EVERY = 5.0
COUNT_AGAIN = 1.0
"""Seconds between two counts of a project that has reached its quota."""
_SHARE = 10
"""How long to rest after a count, as a multiple of how long it took."""
_QUICK = 0.005
"""Seconds that a count may take to be repeated for each part of the room."""
_PARTS = 8
_PATIENCE = 1.0
"""Seconds that a post waits for a count, which then goes on in the background."""
_PAGE = 100
_MAX_PROJECTS = 10_000
_MOST_PARTS = 64
"""How many parts of a project's bytes are kept; beyond that they are merged in pairs."""


class Receipt(Protocol):
    """The result of a post."""

    @property
    def posted(self) -> Sequence[Posted]:
        """What became of its messages, in their order."""


R = TypeVar("R", bound=Receipt)


class Counted(NamedTuple):
    """How much a project's queues hold; the bytes are an estimate."""

    messages: int
    bytes: int


class _Tally:
    """A project's last count, and what this process posted since."""

    def __init__(self) -> None:
        self.messages, self.bytes = 0, 0.0
        self._parts: deque[tuple[int, float]] = deque()
        self.added, self.added_bytes = 0, 0
        self.off, self.off_bytes = 0, 0
        self.at: float | None = None
        self.took = 0.0
        self.count: asyncio.Task[None] | None = None

    def is_older(self, seconds: float, now: float) -> bool:
        """Whether the last count is that old, and its rest is over."""
        return self.at is None or now - self.at >= max(seconds, self.took * (_SHARE + 1))

    def is_part_used(self, quota: Quota, count: int, size: int) -> bool:
        """Tell whether a post takes more than a part of the room that the last count found.

        The first post after a count takes what it needs.
        """
        if not self.added or self.took > _QUICK:
            return False
        return (
            quota.messages is not None
            and (self.added + count) * _PARTS > quota.messages - self.messages
        ) or (
            quota.bytes is not None
            and (self.added_bytes + size) * _PARTS > quota.bytes - self.bytes
        )

    def count_off(self, count: int, size: int) -> None:
        """Subtract messages that were added and then not stored, unless a count has done so."""
        if self.added >= count and self.added_bytes >= size:
            self.added, self.added_bytes = self.added - count, self.added_bytes - size
            self.off, self.off_bytes = self.off + count, self.off_bytes + size

    def recount(self, found: int, average: float, added: int, added_bytes: int) -> None:
        """Take a new count, which found `added` of the messages posted since the last one.

        `average` is the assumed size of the messages of other processes.
        """
        if self.at is not None and added:
            self._parts.append((added, added_bytes))
        self.added -= added
        self.added_bytes -= added_bytes
        gone = sum(count for count, _ in self._parts) - found
        if gone < 0:
            self._parts.append((-gone, -gone * average))
        while gone > 0:
            count, size = self._parts.popleft()
            if count > gone:
                self._parts.appendleft((count - gone, size / count * (count - gone)))
            gone -= count
        if len(self._parts) > _MOST_PARTS:
            parts = list(self._parts)
            pairs = zip(parts[::2], [*parts[1::2], (0, 0.0)], strict=False)
            self._parts = deque((one[0] + two[0], one[1] + two[1]) for one, two in pairs)
        self.messages, self.bytes = found, sum(size for _, size in self._parts)

    def excess(self, quota: Quota, count: int, size: int) -> str | None:
        """The quota that a post of `count` messages and `size` bytes would exceed, in words."""
        total = self.messages + self.added + count
        if quota.messages is not None and total > quota.messages:
            return f"{quota.messages} messages"
        if quota.bytes is not None and self.bytes + self.added_bytes + size > quota.bytes:
            return f"{quota.bytes} bytes of messages"
        return None


@dataclass(eq=False, repr=False)
class MessageQuota:
    """Refuses posts that would exceed a project's quota of messages or bytes."""

    messages: MessageStore
    management: ManagementStore
    quota_of: QuotaOf
    shared: bool = False
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.is_on = True
        """Whether any project has such a quota."""
        self._tallies: Cache[str, _Tally] = Cache(_MAX_PROJECTS)

    def bounds(self, project: str) -> bool:
        """Whether the project has a quota of messages or bytes."""
        quota = self.quota_of(project)
        return quota.messages is not None or quota.bytes is not None

    async def post(
        self,
        project: str,
        sizes: Sequence[int],
        post: Callable[[], Awaitable[R]],
        is_repeated: Callable[[], Awaitable[bool]],
    ) -> R:
        """Post messages with bodies of these `sizes` for a project with a quota.

        Messages that were refused or were duplicates are subtracted again. Otherwise a project
        could post small messages that are never stored, and lower the estimate of its bytes.

        Raises:
            QuotaReached: they would exceed a quota, and do not repeat an earlier post.
        """
        count, size = len(sizes), sum(sizes)
        try:
            await self.admit(project, count, size)
        except QuotaReached:
            if await is_repeated():
                return await post()
            raise
        try:
            done = await post()
        except Unavailable:
            raise  # they may have been stored
        except ZaqarLiteError:
            self._tally(project).count_off(count, size)
            raise
        again = [size for size, one in zip(sizes, done.posted, strict=False) if one.duplicate]
        if again:
            self._tally(project).count_off(len(again), sum(again))
        return done

    async def admit(self, project: str, count: int, size: int) -> None:
        """Add `count` messages with bodies of `size` bytes together to a project with a quota.

        Raises:
            QuotaReached: they would exceed a quota of the project.
        """
        quota = self.quota_of(project)
        tally, now = self._tally(project), self.monotonic()
        is_part_used = self.shared and tally.is_part_used(quota, count, size)
        if is_part_used or tally.is_older(2 * COUNT_EVERY, now):
            await self._counted(project, tally)
        elif tally.is_older(COUNT_EVERY, now):
            self._begin(project, tally)
        excess = tally.excess(quota, count, size)
        if excess is not None and tally.is_older(COUNT_AGAIN, self.monotonic()):
            await self._counted(project, tally)
            excess = tally.excess(quota, count, size)
        if excess is not None:
            raise QuotaReached(
                f"The post does not fit into the project's quota of {excess}: receive or delete "
                "some, or ask the operator of this server for more."
            )
        tally.added += count
        tally.added_bytes += size

    async def counted(self, project: str) -> Counted | None:
        """How much a project has; None if it could not be counted within a second."""
        tally = self._tally(project)
        if tally.is_older(COUNT_EVERY, self.monotonic()):
            await self._counted(project, tally)
        if tally.at is None:
            return None
        return Counted(tally.messages + tally.added, round(tally.bytes) + tally.added_bytes)

    def start(self) -> None:
        """Do nothing: a project is counted when it is asked for."""

    async def stop(self) -> None:
        """Cancel the counts in progress."""
        await cancelled(*(tally.count for tally in self._tallies.values()))

    def _tally(self, project: str) -> _Tally:
        tally = self._tallies.get(project)
        if tally is None:
            tally = self._tallies[project] = _Tally()
        return tally

    async def _counted(self, project: str, tally: _Tally) -> None:
        """Wait for a count for at most a second; after that it goes on in the background."""
        await asyncio.wait({self._begin(project, tally)}, timeout=_PATIENCE)

    def _begin(self, project: str, tally: _Tally) -> "asyncio.Task[None]":
        if tally.count is None or tally.count.done():
            tally.count = asyncio.create_task(self._count(project, tally), name="count")
        return tally.count

    async def _count(self, project: str, tally: _Tally) -> None:
        begun = self.monotonic()
        added, added_bytes = tally.added, tally.added_bytes
        tally.off, tally.off_bytes = 0, 0
        try:
            found, sampled = await self._look(project)
        except Unavailable as exc:
            logger.debug("the messages of a project were not counted: %s", exc)
            return
        # A post that failed during the count is in `added`, but the count did not find it.
        added, added_bytes = max(added - tally.off, 0), max(added_bytes - tally.off_bytes, 0)
        tally.recount(found, sampled / found if found else 0.0, added, added_bytes)
        tally.at, tally.took = begun, self.monotonic() - begun

    async def _look(self, project: str) -> tuple[int, float]:
        """Count a project's messages; estimate their bytes by the first and last of each queue."""
        found, sampled = 0, 0.0
        marker: str | None = None
        while True:
            page = await self.management.list_queues(
                project, marker=marker, limit=_PAGE, name_contains=None, metadata={}
            )
            for record in page:
                stats = await self.messages.stats(record.queue)
                found += stats.total
                sampled += stats.total * _average(stats)
            if len(page) < _PAGE:
                return found, sampled
            marker = page[-1].queue.name
            await asyncio.sleep(0)  # others have their turn


def _average(stats: Stats) -> float:
    sizes = [len(end.body) for end in (stats.oldest, stats.newest) if end is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0


MOST_COUNTED = 10_000
"""The most subscriptions that are counted; a larger number is reported as this one."""


@dataclass(eq=False, repr=False)
class QuotaUsage:
    """Add up what a project has."""

    queues: Queues
    tally: MessageQuota
    subscriptions: Subscriptions
    long_polling: LongPolling
    connection_limits: ConnectionLimits

    async def of(self, project: str) -> Mapping[str, int | None]:
        """What a project has; None for what is not known within a second.

        Requests that wait, and connections, are those of all processes that share the store, as
        each reported within 4 seconds; connections are counted only while any project has a
        quota of them.
        """
        counted = await self.tally.counted(project)
        return {
            "queues": await self.queues.count(project),
            "messages": None if counted is None else counted.messages,
            "bytes": None if counted is None else counted.bytes,
            "subscriptions": await self.subscriptions.count(project, MOST_COUNTED),
            "waiters": await self.long_polling.limit.total_of(project),
            "connections": await self.connection_limits.total_of(project),
        }
