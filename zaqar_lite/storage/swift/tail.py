"""Positions: given out under the queue's lock, and shown to readers only when all below are there.

A batch is written in parallel, so its messages appear in any order. Until it is complete the tail
is open at its first position, and readers stop there. Where this process is alone, that lives in
memory, and what is written is a position ahead of those given out, once a minute at most while the
clock leads; else the tail is opened before and closed after the messages. A post with idempotency
keys always opens it, with its intent: whoever takes the lock after a crash finishes the post or
undoes it, before anything of it can be handed out.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from zaqar_lite.domain.clock import Clock
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.layout import NOTHING_MEANT, Intent, Listed, Tail
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Objects, together

_MAX_KNOWN = 10_000
_AHEAD_US = 60_000_000
_AHEAD_POSITIONS = 10_000
"""How far ahead the tail of a process that is alone is written: of the clock, or else of the last
position, where that leads the clock. A restart goes on from there.
"""
_IDLE_MS = 30 * 24 * 3_600_000
"""After so long without a post a tail may be swept away: positions follow the clock by then.

Its deadline is a multiple of this, because every change of one costs Swift two more writes.
"""


class Queue:
    """What this process knows of one queue."""

    def __init__(self) -> None:
        self.tail: Tail | None = None
        self.settled = False
        """Whether nothing is open that another process left; told where this process is alone."""
        self.recorded = False
        """Whether the tail that is open now is written to Swift as such."""
        self.written = 0
        """No position up to this one needs the tail in Swift to be written again."""
        self.bound: int | None = None
        """No more messages than this are there, as long as this process is alone."""


class Tails:
    """The tails of all queues."""

    def __init__(self, objects: Objects, clock: Clock, *, shared: bool, lease: float) -> None:
        self._objects = objects
        self._clock = clock
        self._shared = shared
        self._lease_us = int(lease * 1_000_000)
        self._known: OrderedDict[str, Queue] = OrderedDict()

    def queue(self, container: str) -> Queue:
        """What is known of a queue; forgotten when others are used more."""
        queue = self._known.setdefault(container, Queue())
        self._known.move_to_end(container)
        if len(self._known) > _MAX_KNOWN:
            first = next(iter(self._known))
            tail = self._known[first].tail
            if tail is None or not tail.opened:
                del self._known[first]
        return queue

    async def load(self, container: str, lease: Lease) -> Tail:
        """The tail, under the lock; what a crash left open is closed first."""
        queue = self.queue(container)
        if queue.tail is None or self._shared or queue.tail.opened:
            found = await self._read(container, lease)
            queue.written = found.last
            if queue.tail is not None and queue.tail.last > found.last:
                found = replace(found, last=queue.tail.last)
            queue.tail, queue.settled = found, True
            if found.opened:
                queue.tail = await self.heal(container, lease)
        return queue.tail

    async def settle(self, container: str, lease: Lease) -> None:
        """Close what a crash left open, under the lock, before messages are given out or changed.

        To heal later would take one that is gone for one that was never written.
        """
        queue = self.queue(container)
        if self._shared or not queue.settled or (queue.tail is not None and queue.tail.opened):
            await self.heal(container, lease)
            queue.settled = True

    async def _read(self, container: str, lease: Lease) -> Tail:
        reply, newest = await asyncio.gather(
            self._objects.head(container, layout.TAIL),
            self._objects.list(container, prefix=layout.MESSAGES, limit=1, newest_first=True),
        )
        if not reply.found:
            await self._objects.make_container(container, lease)
            tail = Tail()
        else:
            tail = Tail.parse(reply.headers["Content-Type"])
        last = Listed(newest[0].name, _NO_STATE).position if newest else 0
        return replace(tail, last=max(tail.last, last))

    @asynccontextmanager
    async def opened(
        self,
        container: str,
        count: int,
        lease: Lease,
        *,
        intent: Callable[[int], Intent] = lambda _: NOTHING_MEANT,
        recorded: bool = False,
        loaded: Tail | None = None,
    ) -> AsyncIterator[tuple[int, Intent]]:
        """Give out `count` positions: the first, and what is meant with it; all hidden as yet.

        The tail is written, with the intent, before anything else where others read it or would
        have to heal after a crash (`recorded`). Else the caller runs `note` beside its writes.
        """
        tail = loaded or await self.load(container, lease)
        queue = self.queue(container)
        first = max(tail.last + 1, self._clock.now_us())
        opened = Tail(first + count - 1, first)
        closed = replace(opened, opened=0)
        queue.tail = opened
        meant = intent(first)
        queue.recorded = self._shared or recorded
        if not queue.recorded:
            try:
                yield first, meant
            finally:
                queue.tail = closed  # nothing of it is in Swift, so there is nothing to heal
            return
        await self._write(container, opened, meant.encode(), lease)
        yield first, meant
        await self._close(container, closed, lease)

    async def note(self, container: str, lease: Lease) -> None:
        """Write the tail beside the messages, unless what is written covers their positions."""
        queue = self.queue(container)
        if queue.tail is None or queue.recorded or queue.tail.last <= queue.written:
            return
        closed = replace(queue.tail, opened=0)
        if not await self._mark(container, closed, lease):
            await self._write(container, closed, b"", lease)

    async def _write(self, container: str, tail: Tail, intent: bytes, lease: Lease) -> None:
        tail, ends = self._ahead(container, tail), self._idle_until()
        await self._objects.put(
            container, layout.TAIL, tail.content_type(), intent, lease, ends=ends
        )
        self.queue(container).written = tail.last

    async def _mark(self, container: str, tail: Tail, lease: Lease) -> bool:
        tail, ends = self._ahead(container, tail), self._idle_until()
        done = await self._objects.mark(
            container, layout.TAIL, tail.content_type(), lease, ends=ends
        )
        if done:
            self.queue(container).written = tail.last
        return done

    def _ahead(self, container: str, tail: Tail) -> Tail:
        """A tail as it is written; to other processes it tells exactly how far positions came."""
        written = self.queue(container).written
        if self._shared:
            return tail
        if tail.last <= written:
            return replace(tail, last=written)
        ahead = max(self._clock.now_us() + _AHEAD_US, tail.last + _AHEAD_POSITIONS)
        return replace(tail, last=ahead)

    def _idle_until(self) -> int:
        return (self._clock.now_ms() // _IDLE_MS + 2) * _IDLE_MS

    async def heal(self, container: str, lease: Lease) -> Tail:
        """Finish or undo, under the lock, the post that a crash left open."""
        reply = await self._objects.get(container, layout.TAIL)
        if not reply.found:
            return Tail()
        tail = Tail.parse(reply.headers["Content-Type"])
        if not tail.opened:
            return tail
        await self._finish_or_undo(container, Intent.parse(reply.body), lease)
        closed = replace(tail, opened=0)
        await self._close(container, closed, lease)
        return closed

    async def _close(self, container: str, closed: Tail, lease: Lease) -> None:
        await self._mark(container, closed, lease)
        self.queue(container).tail = closed

    async def _finish_or_undo(self, container: str, intent: Intent, lease: Lease) -> None:
        states = await together(*(self._objects.state(container, name) for name in intent.messages))
        if all(state is not None for state in states):
            await together(*self.key_writes(container, intent, lease))
        else:
            await self.undo(container, intent, lease)

    def key_writes(
        self, container: str, intent: Intent, lease: Lease
    ) -> Sequence[Coroutine[Any, Any, None]]:
        """The writes of a post's key objects, to be run beside those of its messages."""
        ends = intent.forgotten_at
        return [
            self._objects.put(
                container,
                key.name,
                layout.content_type("key", x=ends, h=key.digest),
                " ".join(key.ids).encode(),
                lease,
                ends=ends,
            )
            for key in intent.keys
        ]

    async def undo(self, container: str, intent: Intent, lease: Lease) -> None:
        """Remove what a post wrote that was not completed: nobody was told of it."""
        names = (*intent.messages, *(key.name for key in intent.keys))
        await together(*(self._objects.remove(container, name, lease) for name in names))

    async def visible_before(self, container: str) -> int:
        """The first position that a reader must not see who lists after this.

        That is the next one to be given out, not only an open one: what is posted between this
        and the listing may be listed in any order. What was opened longer ago than a lease is of
        a poster that is gone, and as complete as it will ever be.
        """
        now_us = self._clock.now_us()
        known = self._known.get(container)
        if known is not None and known.tail is not None and not self._shared:
            tail, next_free = known.tail, 0
        else:
            reply = await self._objects.head(container, layout.TAIL)
            tail = Tail.parse(reply.headers["Content-Type"]) if reply.found else Tail()
            # Alone, the last position may be a crash later than the tail tells; new ones are not
            # below this clock. With others, theirs may be behind, and the tail tells it exactly.
            next_free = 0 if self._shared else now_us
        if tail.opened and not (self._shared and now_us - tail.opened > self._lease_us):
            return tail.opened
        return max(tail.last + 1, next_free)

    def forget(self, container: str) -> None:
        """Forget a queue that was dropped, but not how far its positions came."""
        queue = self.queue(container)
        queue.bound, queue.written = None, 0
        if queue.tail is not None:
            queue.tail = Tail(queue.tail.last)


_NO_STATE = layout.State(0, 0, "")
