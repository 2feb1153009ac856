"""Hold projects to their quotas of messages and bytes, by counting from time to time.

Each store keeps the messages and bytes of a queue in the step that changes them, or reads them from
an index, so a count is right; it asks each queue of a project. Only projects with such a quota are
counted, at most every five seconds and for at most a tenth of the time. The count starts after a
post, or before it if the last count is more than ten seconds old. Between two counts, what this
process posts is added and nothing is subtracted. So a process alone exceeds no quota, and before it
refuses a post it counts again, after a rest of 200 times as long as a count takes, or of a second.

Posts of other processes are not seen until the next count. So where processes share a store, each
of them posts at most an eighth of the room that its last count found, or one post, before it counts
again. P processes thus exceed a quota by (P - 1) / 8 of it at most, or by P - 1 posts, and by what
was being stored during a count. If a count takes longer than _QUICK, it is not repeated so often:
then each process may post all the room that its last count found.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from zaqar_lite.domain.errors import QuotaReached, Unavailable
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.service.background import Worker, cancelled
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.long_polling import LongPolling
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas.concurrency_limits import ConnectionLimits
from zaqar_lite.service.quotas.quotas import Quotas, bounds_messages
from zaqar_lite.service.records import all_queues
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
COUNT_EVERY = 5.0
COUNT_AGAIN = 1.0
"""Seconds between two counts of a project that has reached its quota, or whose usage is shown."""
_SHARE, _SHARE_AGAIN = 10, 200
"""How long to rest after a count, as a multiple of how long it took; and after how long one that
was quick is repeated, although no second is over."""
_QUICK = 0.005
"""Seconds that a count may take to be repeated for each part of the room."""
_PARTS = 8
_PATIENCE = 1.0
"""Seconds of a count in which posts wait for it; then it goes on in the background."""
_MAX_PROJECTS = 10_000

R = TypeVar("R")


class Usage(NamedTuple):
    """Messages, and the bytes of their bodies."""

    messages: int = 0
    bytes: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Both together."""
        return Usage(self.messages + other.messages, self.bytes + other.bytes)

    def minus(self, other: "Usage") -> "Usage":
        """What is left without the other."""
        return Usage(self.messages - other.messages, self.bytes - other.bytes)


class _Tally:
    """A project's last count, and what this process posted since.

    `added` is what was admitted since the count began, whether or not it was stored. What was
    `under_way` then is in it too: nobody knows whether the count has found it.
    """

    def __init__(self) -> None:
        self.found = self.added = self.under_way = Usage()
        self.at: float | None = None
        self.begun = self.took = 0.0
        self.count: asyncio.Task[None] | None = None

    def is_older(self, seconds: float, now: float) -> bool:
        """Whether the last count is that old, and its rest is over."""
        return self.at is None or now - self.at >= max(seconds, self.took * (_SHARE + 1))

    def may_be_repeated(self, now: float) -> bool:
        """Whether to count again before a post is refused, or the usage is shown."""
        return self.is_older(min(COUNT_AGAIN, self.took * _SHARE_AGAIN), now)

    def is_part_used(self, quota: Quota, post: Usage) -> bool:
        """Tell whether a post takes more than a part of the room that the last count found.

        The first post after a count takes what it needs.
        """
        if not self.added.messages or self.took > _QUICK:
            return False
        messages, size = self.added.plus(post)
        return (
            quota.messages is not None and messages * _PARTS > quota.messages - self.found.messages
        ) or (quota.bytes is not None and size * _PARTS > quota.bytes - self.found.bytes)

    def excess(self, quota: Quota, post: Usage) -> str | None:
        """The quota that a post would exceed, in words."""
        messages, size = self.found.plus(self.added).plus(post)
        if quota.messages is not None and messages > quota.messages:
            return f"{quota.messages} messages"
        if quota.bytes is not None and size > quota.bytes:
            return f"{quota.bytes} bytes of messages"
        return None


@dataclass(eq=False, repr=False)
class MessageQuota(Worker):
    """Refuses posts that would exceed a project's quota of messages or bytes."""

    messages: MessageStore
    management: ManagementStore
    quotas: Quotas
    shared: bool
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._tallies: Cache[str, _Tally] = Cache(_MAX_PROJECTS)

    async def post(
        self,
        project: str,
        sizes: Sequence[int],
        post: Callable[[], Awaitable[R]],
        is_repeated: Callable[[], Awaitable[bool]],
    ) -> R:
        """Post messages with bodies of these `sizes`, within the project's quota if it has one.

        Raises:
            QuotaReached: they would exceed a quota, and do not repeat an earlier post.
        """
        if not bounds_messages(self.quotas.of(project)):
            return await post()
        tally, usage = self._tally(project), Usage(len(sizes), sum(sizes))
        try:
            await self._admit(project, tally, usage)
        except QuotaReached:
            if await is_repeated():
                return await post()
            raise
        try:
            return await post()
        finally:
            tally.under_way = tally.under_way.minus(usage)

    async def _admit(self, project: str, tally: _Tally, post: Usage) -> None:
        """Add what is posted to what a project has.

        Raises:
            QuotaReached: it would exceed a quota of the project.
        """
        quota, now = self.quotas.of(project), self.monotonic()
        is_part_used = self.shared and tally.is_part_used(quota, post)
        if is_part_used or tally.is_older(2 * COUNT_EVERY, now):
            await self._counted(project, tally)
        elif tally.is_older(COUNT_EVERY, now):
            self._begin(project, tally)
        excess = tally.excess(quota, post)
        if excess is not None and tally.may_be_repeated(self.monotonic()):
            await self._counted(project, tally)
            excess = tally.excess(quota, post)
        if excess is not None:
            raise QuotaReached(f"{excess}, in which the post has no room", "receive or delete some")
        tally.added, tally.under_way = tally.added.plus(post), tally.under_way.plus(post)

    async def usage(self, project: str) -> Usage | None:
        """How much a project has; None if it could not be counted within a second."""
        tally = self._tally(project)
        if tally.may_be_repeated(self.monotonic()):
            await self._counted(project, tally)
        return None if tally.at is None else tally.found.plus(tally.added)

    async def stop(self) -> None:
        """Cancel the counts in progress."""
        await cancelled(*(tally.count for tally in self._tallies.values()))

    def _tally(self, project: str) -> _Tally:
        tally = self._tallies.get(project)
        if tally is None:
            tally = self._tallies[project] = _Tally()
        return tally

    async def _counted(self, project: str, tally: _Tally) -> None:
        """Wait for a count in its first second; after that it goes on in the background."""
        count = self._begin(project, tally)
        left = tally.begun + _PATIENCE - self.monotonic()
        if left > 0:
            await asyncio.wait({count}, timeout=left)

    def _begin(self, project: str, tally: _Tally) -> "asyncio.Task[None]":
        if tally.count is None or tally.count.done():
            tally.begun = self.monotonic()
            tally.count = asyncio.create_task(self._count(project, tally), name="count")
        return tally.count

    async def _count(self, project: str, tally: _Tally) -> None:
        stored = tally.added.minus(tally.under_way)
        try:
            tally.found = await self._look(project)
        except Unavailable as exc:
            logger.debug("the messages of a project were not counted: %s", exc)
            return
        tally.added = tally.added.minus(stored)
        tally.at, tally.took = tally.begun, self.monotonic() - tally.begun

    async def _look(self, project: str) -> Usage:
        found = Usage()
        async for record in all_queues(self.management, project):
            stats = await self.messages.stats(record.queue)
            found = found.plus(Usage(stats.total, stats.bytes))
        return found


MOST_COUNTED = 10_000
"""The most subscriptions that are counted; a larger number is reported as this one."""


@dataclass(eq=False, repr=False)
class QuotaUsage:
    """Add up what a project has."""

    queues: Queues
    message_quota: MessageQuota
    subscriptions: Subscriptions
    long_polling: LongPolling
    connection_limits: ConnectionLimits

    async def of(self, project: str) -> Mapping[str, int | None]:
        """What a project has; None for what is not known within a second.

        Requests that wait, and connections, are those of all processes that share the store, as
        each reported within 4 seconds; connections are counted only while any project has a
        quota of them.
        """
        found = await self.message_quota.usage(project)
        return {
            "queues": await self.queues.count(project),
            "messages": None if found is None else found.messages,
            "bytes": None if found is None else found.bytes,
            "subscriptions": await self.subscriptions.kind.count(project, MOST_COUNTED),
            "waiters": await self.long_polling.limit.total_of(project),
            "connections": await self.connection_limits.limit.total_of(project),
        }
