"""Group commit: the posts that wait for one queue in this process share one transaction.

All posts to a queue change its counter, and transactions that change it at once make each other
start again. With one transaction at a time per queue and process, contention falls with load.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted

MOST_MESSAGES = 1_000
MOST_BYTES = 8 << 20
"""The most bytes in one transaction, unless a single post is larger."""


@dataclass(eq=False)
class PendingPost:
    """A post that waits to be stored; `outcome` becomes its answer or its error.

    `ids`, by the index of their messages, are fixed when the first try has learned its positions. A
    later try that finds them stored knows that the earlier one's answer was lost.
    """

    messages: Sequence[NewMessage]
    client_id: str
    batch_key: IdempotencyKey | None
    version: int | None
    ids: dict[int, str] = field(default_factory=dict)
    answer: Sequence[Posted] = ()
    outcome: "asyncio.Future[Sequence[Posted]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def size(self) -> int:
        """About how many bytes its documents take."""
        return sum(len(message.body) + 300 for message in self.messages)

    def refuse(self, error: BaseException) -> None:
        """Answer with an error: it stores nothing."""
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def accept(self) -> None:
        """Answer that it is stored."""
        if not self.outcome.done():
            self.outcome.set_result(self.answer)


Store = Callable[[QueueRef, Sequence[PendingPost]], Awaitable[None]]


class GroupCommit:
    """One worker task for each queue that posts wait for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[QueueRef, deque[PendingPost]] = {}
        self._workers: dict[QueueRef, asyncio.Task[None]] = {}

    async def add(self, queue: QueueRef, post: PendingPost) -> Sequence[Posted]:
        """Store a post together with the others that wait for its queue."""
        self._waiting.setdefault(queue, deque()).append(post)
        if queue not in self._workers:
            self._workers[queue] = asyncio.create_task(self._work(queue))
        return await post.outcome

    async def close(self) -> None:
        """Wait for the transactions that have begun."""
        await asyncio.gather(*self._workers.values(), return_exceptions=True)

    async def _work(self, queue: QueueRef) -> None:
        waiting = self._waiting[queue]
        batch: list[PendingPost] = []
        try:
            while waiting:
                batch = _next_batch(waiting)
                try:
                    await self._store(queue, batch)
                except Exception as exc:  # noqa: BLE001 - each waiting caller is given it
                    for post in batch:
                        post.refuse(exc)
        finally:
            del self._workers[queue], self._waiting[queue]
            for post in (*batch, *waiting):
                post.outcome.cancel()  # the worker was cancelled: nothing will store it


def _next_batch(waiting: deque[PendingPost]) -> list[PendingPost]:
    """Take as many posts as fit into one transaction; leave out those that were cancelled."""
    batch: list[PendingPost] = []
    messages = size = 0
    while waiting:
        post = waiting[0]
        messages += len(post.messages)
        size += post.size
        if batch and (messages > MOST_MESSAGES or size > MOST_BYTES):
            break
        waiting.popleft()
        if not post.outcome.done():
            batch.append(post)
    return batch
