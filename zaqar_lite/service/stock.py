"""What projects have: messages and bytes, counted now and then, plus what this process posted.

Counting asks each queue for its statistics. So it is done at most every five seconds, takes at most
a tenth of the time, and only concerns projects that have such a quota. It is done after a post, or
before the post if the last count is twice as old. Between two counts what this process posts is
added, and nothing is taken off; so a project that seems to have reached its quota is counted again
before a post is refused, once a second at most. What other processes post between two counts is not
seen: a quota may be exceeded by that much.

No store counts bytes. This process knows the sizes of its own posts, in the order they came;
messages of other processes are assumed to be as large as those at the ends of the queues. What has
gone since the last count is assumed to be the oldest. So where messages leave in the order they
came, the sum stays right, and an error in it leaves with the messages that it came from.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from zaqar_lite.domain.errors import QuotaReached, Unavailable, ZaqarLiteError
from zaqar_lite.domain.models import Stats
from zaqar_lite.domain.posts import Posted
from zaqar_lite.domain.quotas import Quota, QuotaOf
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
COUNT_EVERY = 5.0
COUNT_AGAIN = 1.0
"""Seconds between two counts of a project that has reached its quota."""
_SHARE = 10
"""The rest after a count, in times of how long the count took."""
_PATIENCE = 1.0
"""Seconds that a post waits for a count; what takes longer goes on without it."""
_PAGE = 100
_MAX_PROJECTS = 10_000
_MOST_PARTS = 64
"""How many counts of a project's bytes are kept; when there are more, they are merged in pairs."""


class Receipt(Protocol):
    """What a post answers."""

    @property
    def posted(self) -> Sequence[Posted]:
        """What became of its messages, in their order."""


R = TypeVar("R", bound=Receipt)


class Counted(NamedTuple):
    """What a project's queues hold; the bytes are an estimate."""

    messages: int
    bytes: int


class _Stock:
    """What is known of a project: its last count, and what was posted since."""

    __slots__ = (
        *("_parts", "added", "added_bytes", "at", "bytes", "count", "messages"),
        *("off", "off_bytes", "took"),
    )

    def __init__(self) -> None:
        self.messages, self.bytes = 0, 0.0
        self._parts: deque[tuple[int, float]] = deque()
        self.added, self.added_bytes = 0, 0
        self.off, self.off_bytes = 0, 0
        self.at: float | None = None
        self.took = 0.0
        self.count: asyncio.Task[None] | None = None

    def is_older(self, seconds: float, now: float) -> bool:
        """Tell whether the last count is so old, and old enough to be repeated."""
        return self.at is None or now - self.at >= max(seconds, self.took * (_SHARE + 1))

    def count_off(self, count: int, size: int) -> None:
        """Take off what was added and then not stored, unless a count has done so."""
        if self.added >= count and self.added_bytes >= size:
            self.added, self.added_bytes = self.added - count, self.added_bytes - size
            self.off, self.off_bytes = self.off + count, self.off_bytes + size

    def recount(self, found: int, average: float, added: int, added_bytes: int) -> None:
        """Take over a count, which includes `added` of the messages posted since the last one.

        `average` is the assumed size of messages that other processes posted.
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
        """Say which quota a post of `count` messages and `size` bytes would exceed, if any."""
        total = self.messages + self.added + count
        if quota.messages is not None and total > quota.messages:
            return f"{quota.messages} messages"
        if quota.bytes is not None and self.bytes + self.added_bytes + size > quota.bytes:
            return f"{quota.bytes} bytes of messages"
        return None


class Stock:
    """Refuse posts of projects that have as many messages, or bytes, as their quota allows."""

    def __init__(
        self,
        messages: MessageStore,
        management: ManagementStore,
        quota_of: QuotaOf,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._messages = messages
        self._management = management
        self._quota_of = quota_of
        self._monotonic = monotonic
        self._stocks: OrderedDict[str, _Stock] = OrderedDict()

    def bounds(self, project: str) -> bool:
        """Tell whether the project has a quota of messages or of bytes."""
        quota = self._quota_of(project)
        return quota.messages is not None or quota.bytes is not None

    async def post(
        self,
        project: str,
        sizes: Sequence[int],
        post: Callable[[], Awaitable[R]],
        is_repeated: Callable[[], Awaitable[bool]],
    ) -> R:
        """Post messages with bodies of these `sizes` to a project that is bounded.

        What was refused, or was there already, is counted off again: else a project could post
        small messages that are never stored, and be taken to have only such.

        Raises:
            QuotaReached: they would exceed a quota of the project, and are no repetition.
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
            self._stock(project).count_off(count, size)
            raise
        again = [size for size, one in zip(sizes, done.posted, strict=False) if one.duplicate]
        if again:
            self._stock(project).count_off(len(again), sum(again))
        return done

    async def admit(self, project: str, count: int, size: int) -> None:
        """Let `count` messages with bodies of `size` bytes into a project that is bounded.

        Raises:
            QuotaReached: they would exceed a quota of the project.
        """
        quota = self._quota_of(project)
        stock, now = self._stock(project), self._monotonic()
        if stock.is_older(2 * COUNT_EVERY, now):
            await self._counted(project, stock)
        elif stock.is_older(COUNT_EVERY, now):
            self._begin(project, stock)
        excess = stock.excess(quota, count, size)
        if excess is not None and stock.is_older(COUNT_AGAIN, self._monotonic()):
            await self._counted(project, stock)
            excess = stock.excess(quota, count, size)
        if excess is not None:
            raise QuotaReached(
                f"The post does not fit into the project's quota of {excess}: receive or delete "
                "some, or ask the operator of this server for more."
            )
        stock.added += count
        stock.added_bytes += size

    async def counted(self, project: str) -> Counted | None:
        """What a project has; None when that is not known within a second."""
        stock = self._stock(project)
        if stock.is_older(COUNT_EVERY, self._monotonic()):
            await self._counted(project, stock)
        if stock.at is None:
            return None
        return Counted(stock.messages + stock.added, round(stock.bytes) + stock.added_bytes)

    def start(self) -> None:
        """Do nothing: what is asked for is counted."""

    async def stop(self) -> None:
        """End the counts that go on."""
        counts = [stock.count for stock in self._stocks.values() if stock.count is not None]
        for count in counts:
            count.cancel()
        await asyncio.gather(*counts, return_exceptions=True)

    def _stock(self, project: str) -> _Stock:
        stock = self._stocks.get(project)
        if stock is None:
            stock = self._stocks[project] = _Stock()
            if len(self._stocks) > _MAX_PROJECTS:
                self._stocks.popitem(last=False)
        return stock

    async def _counted(self, project: str, stock: _Stock) -> None:
        """Count, for a second at most; behind that the count goes on by itself."""
        await asyncio.wait({self._begin(project, stock)}, timeout=_PATIENCE)

    def _begin(self, project: str, stock: _Stock) -> "asyncio.Task[None]":
        if stock.count is None or stock.count.done():
            stock.count = asyncio.create_task(self._count(project, stock), name="count")
        return stock.count

    async def _count(self, project: str, stock: _Stock) -> None:
        begun = self._monotonic()
        added, added_bytes = stock.added, stock.added_bytes
        stock.off, stock.off_bytes = 0, 0
        try:
            found, sampled = await self._look(project)
        except Unavailable as exc:
            logger.debug("the messages of a project were not counted: %s", exc)
            return
        # A post that failed while the queues were asked is in `added`, and was not found.
        added, added_bytes = max(added - stock.off, 0), max(added_bytes - stock.off_bytes, 0)
        stock.recount(found, sampled / found if found else 0.0, added, added_bytes)
        stock.at, stock.took = begun, self._monotonic() - begun

    async def _look(self, project: str) -> tuple[int, float]:
        """Count a project's messages, and guess their bytes by the ends of its queues."""
        found, sampled = 0, 0.0
        marker: str | None = None
        while True:
            page = await self._management.list_queues(
                project, marker=marker, limit=_PAGE, name_contains=None, metadata={}
            )
            for record in page:
                stats = await self._messages.stats(record.ref)
                found += stats.total
                sampled += stats.total * _average(stats)
            if len(page) < _PAGE:
                return found, sampled
            marker = page[-1].ref.name
            await asyncio.sleep(0)  # others have their turn


def _average(stats: Stats) -> float:
    sizes = [len(end.body) for end in (stats.oldest, stats.newest) if end is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0
