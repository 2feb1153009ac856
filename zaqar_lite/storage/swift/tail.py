"""Positions: taken under the queue's lock; readers see one only when all below it are written.

A batch is written in parallel, so its messages appear in any order. Until it is complete, readers
stop at its first position: a process that is alone remembers that, others read it from the tail in
Swift, which is written after the messages. A post that began more than a lease ago has ended, so
readers pass it whatever the tail says. A post with idempotency keys writes the tail before its
messages too, with its intent: the next holder of the lock finishes or undoes it after a crash,
before anything of it can be handed out.

The tail also holds what would otherwise cost a request of its own: the version of the queue's
record, an upper bound of what the container holds, and where the queue's life began. Messages of an
earlier life, which a purge or a drop ended, are never shown, and the sweep removes them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.layout import State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Objects, together
from zaqar_lite.storage.watchers import Watchers

_FIELDS = ("last", "open", "birth", "born", "gone", "v", "n")
"""How a content type names the numbers of a `Tail`, in their order."""
_MAX_KNOWN = 10_000
_AHEAD_US = 60_000_000
_AHEAD_POSITIONS = 10_000
"""How far ahead of the clock, or of the last position where that is later, a process that is alone
writes its tail. A restart goes on from there.
"""
_SKEW_US = 4_000_000
"""Twice what the clock of a process may differ from Swift's."""
_IDLE_MS = 30 * 24 * 3_600_000
"""A tail expires after this long without a post: positions follow the clock by then.

Its deadline is a multiple of this, because every change of one costs Swift two more writes.
"""


@dataclass(frozen=True, slots=True)
class Tail:
    """The last position of a queue, and what is known of the whole queue.

    `last` is the last position given out; `opened` the first one of a post that is being written,
    0 when none is. Messages before `birth` are of an earlier life, which a purge ended, and so
    are keys of messages before `born`, where the queue was dropped at `gone`. `version` is the
    queue record's and `bound` the most messages and keys there can be; 0 where it is not known.
    `project` is the queue's, for the sweep, where the tail was written by this version.
    """

    last: int = 0
    opened: int = 0
    birth: int = 0
    born: int = 0
    gone: int = 0
    version: int = 0
    bound: int = 0
    project: str = field(default="", kw_only=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it from a content type."""
        found = layout.parameters(text)
        project = unquote(found.get("p", ""), errors="surrogatepass")
        numbers = (int(found.get(key, "0"), 16) for key in _FIELDS)
        return cls(*numbers, project=project)

    def content_type(self) -> str:
        """Write it as a content type."""
        values = zip(_FIELDS, astuple(self), strict=False)
        numbers = {key: f"{value:x}" for key, value in values if value}
        return layout.content_type(
            "tail", **numbers, p=quote(self.project, "", errors="surrogatepass")
        )


class Key(NamedTuple):
    """An idempotency key's object: its name, the ids that it stands for, the digest in hex."""

    name: str
    ids: Sequence[str]
    digest: str = ""


class Intent(NamedTuple):
    """The tail's content while a post is being written.

    `messages` are names. Whoever finds it under the lock finishes the post or undoes it.
    """

    messages: tuple[str, ...]
    keys: tuple[Key, ...]
    forgotten_at: int


@dataclass(slots=True)
class KnownQueue:
    """What this process knows of one queue."""

    tail: Tail | None = None
    project: str = ""
    written: int = 0
    """No position up to this one needs the tail in Swift to be written again."""
    nothing_ready: tuple[int, int, int] | None = None
    """Before this position nothing is ready until this instant; claims trust that until another."""
    exposed_to: int = 0
    """The position up to which delayed messages have been exposed."""
    due_at: int | None = None
    """When something next becomes ready by time; None where that is not known."""
    room: tuple[int, int] | None = None
    """Until this instant the queue has room for at most so many messages."""

    def something_may_be_ready(self) -> None:
        """Let the next claim look at the queue from its beginning."""
        self.nothing_ready = self.room = None


class Tails:
    """The tails of all queues."""

    def __init__(self, objects: Objects, clock: Clock, *, shared: bool, lease: float) -> None:
        self._objects = objects
        self._clock = clock
        self._shared = shared
        self._lease_us = int(lease * 1_000_000)
        self._known: OrderedDict[str, KnownQueue] = OrderedDict()

    def known(self, container: str) -> KnownQueue:
        """What is known of a queue; forgotten when others are used more."""
        queue = self._known.setdefault(container, KnownQueue())
        self._known.move_to_end(container)
        if len(self._known) > _MAX_KNOWN:
            first = next(iter(self._known))
            tail = self._known[first].tail
            if tail is None or not tail.opened:
                del self._known[first]
        return queue

    async def load(self, container: str, lease: Lease) -> Tail:
        """The tail, under the lock; what a crash left open is finished or undone first.

        Done later, it would mistake a message that is gone by then for one that was never written.
        """
        queue = self.known(container)
        known = queue.tail
        if known is not None and not self._shared and not known.opened:
            return known
        if known is None:
            found, last = await asyncio.gather(self._read(container), self._last(container))
        else:
            found, last = await self._read(container), known.last
        queue.written = found.last
        found = replace(found, last=max(found.last, last))
        if not self._shared:  # it is not written with every post then
            found = replace(found, version=0, bound=0 if known is None else known.bound)
        queue.tail = found
        return await self._finish_post(container, found, lease) if found.opened else found

    async def peek(self, container: str) -> Tail:
        """The tail, without the lock."""
        known = self._known.get(container)
        if known is not None and known.tail is not None and not self._shared:
            return known.tail
        return await self._read(container)

    async def project(self, container: str) -> str:
        """The project of a queue, which never changes; empty where its tail does not tell."""
        queue = self.known(container)
        queue.project = queue.project or (await self.peek(container)).project
        return queue.project

    def first_hidden(self, tail: Tail) -> int:
        """The first position that a reader must not see who lists after having read `tail`.

        That is the next position, not only an open one: what is posted between reading the tail and
        listing may be listed in any order. For a process that is alone, a crash may have left later
        positions than the tail tells, but new ones are not below its clock. Where others share the
        store, their positions may be behind its clock by less than a lease.
        """
        now = self._clock.now_us()
        passed = now - self._lease_us - _SKEW_US if self._shared else now
        if tail.opened and not (self._shared and tail.opened < passed):
            return tail.opened
        return max(tail.last + 1, passed)

    async def _read(self, container: str) -> Tail:
        reply = await self._objects.head(container, layout.TAIL)
        return Tail.parse(reply.headers["Content-Type"]) if reply.found else Tail()

    async def _last(self, container: str) -> int:
        """The last position that is listed; 0 for none."""
        page = await self._objects.list(
            container, prefix=layout.MESSAGES, limit=1, newest_first=True
        )
        return layout.position_of(page[0].name) if page else 0

    def advance(self, tail: Tail, count: int, *, project: str, keys: int = 0) -> tuple[Tail, range]:
        """Take the next positions for messages, which come with keys; answer the tail then."""
        first = max(tail.last + 1, self._clock.now_us())
        tail = replace(
            tail,
            last=first + count - 1,
            opened=first,
            gone=0,
            bound=tail.bound and tail.bound + count + keys,
            project=tail.project or project,
        )
        return tail, range(first, first + count)

    @asynccontextmanager
    async def appending(
        self, container: str, tail: Tail, lease: Lease, intent: Intent | None = None
    ) -> AsyncIterator[None]:
        """Let messages be written at the positions that `tail` opened; readers see them after that.

        With an intent the tail is written before the block too, for whoever comes after a crash.
        """
        queue, closed = self.known(container), replace(tail, opened=0)
        is_first, queue.tail = not (queue.tail and queue.tail.last), tail
        try:
            if is_first:
                await self._objects.make_container(container, lease)
            if intent is not None:
                await self._write(container, tail, lease, msgspec.json.encode(intent))
            yield
        finally:
            if intent is None:  # else the next holder of the lock finishes or undoes it
                queue.tail = closed
        if intent is not None or self._shared or closed.last > queue.written:
            # All messages are stored. Without an intent a failure here is not reported: readers
            # pass the tail when a lease is over. With one the post is not over: it would be undone
            # if one of its messages expired before the next holder of the lock finds it.
            with suppress(Unavailable) if intent is None else nullcontext():
                await self._write(container, closed, lease)
                queue.tail = closed

    async def end_life(self, container: str, lease: Lease, *, gone: bool) -> None:
        """End the queue's life: nothing that was posted by now is shown any more.

        The positions of the next life are above all of this one, also above what lands late. Keys
        outlive a purge and not a drop, where the queue is `gone`.
        """
        tail = await self.load(container, lease)
        last = max(tail.last, await self._last(container))
        if not last:
            return
        tail = replace(tail, last=last, birth=last + 1, bound=0)
        if gone:
            tail = replace(tail, born=last + 1, version=0, gone=self._clock.now_ms())
        await self._write(container, tail, lease)
        queue = self.known(container)
        queue.tail, queue.exposed_to = tail, 0
        queue.something_may_be_ready()

    async def note_version(self, container: str, version: int, lease: Lease) -> None:
        """Write the version of the queue's record: 0 before it changes, the new one after it."""
        if self._shared:
            tail = await self.load(container, lease)
            if tail.last and tail.version != version:
                tail = replace(tail, version=version)
                await self._write(container, tail, lease)
                self.known(container).tail = tail

    async def _write(self, container: str, tail: Tail, lease: Lease, intent: bytes = b"") -> None:
        """Write the tail; where processes share the store it holds the exact last position."""
        queue = self.known(container)
        if not self._shared:
            ahead = max(self._clock.now_us() + _AHEAD_US, tail.last + _AHEAD_POSITIONS)
            tail = replace(tail, last=ahead if tail.last > queue.written else queue.written)
        kind = tail.content_type()
        ends = (self._clock.now_ms() // _IDLE_MS + 2) * _IDLE_MS
        if intent or not await self._objects.mark(container, layout.TAIL, kind, lease, ends=ends):
            await self._objects.put(container, layout.TAIL, kind, intent, lease, ends=ends)
        queue.written = tail.last

    async def _finish_post(self, container: str, tail: Tail, lease: Lease) -> Tail:
        """Finish or undo, under the lock, the post that a crash left open."""
        reply = await self._objects.get(container, layout.TAIL)
        nothing = Intent((), (), 0)
        intent = msgspec.json.decode(reply.body, type=Intent) if reply.body else nothing
        found = await together(*(self._objects.listed(container, name) for name in intent.messages))
        if all(found):
            await self.put_keys(container, intent, lease)
        else:
            await self.undo(container, intent, lease)
        closed = replace(tail, opened=0)
        await self._write(container, closed, lease)
        self.known(container).tail = closed
        return closed

    async def put_keys(self, container: str, intent: Intent, lease: Lease) -> None:
        """Write the key objects of a post."""
        ends = intent.forgotten_at
        await together(
            *(
                self._objects.put(
                    container,
                    key.name,
                    layout.content_type("key", x=ends, h=key.digest),
                    " ".join(key.ids).encode(),
                    lease,
                    ends=ends,
                )
                for key in intent.keys
            )
        )

    async def undo(self, container: str, intent: Intent, lease: Lease) -> None:
        """Remove what an incomplete post wrote: no client was answered."""
        names = (*intent.messages, *(key.name for key in intent.keys))
        await together(*(self._objects.remove(container, name, lease) for name in names))


class Hints:
    """Announce what happens in watched queues; note when a queue's next message is due.

    A process does not learn what others do. Where several share the store, a waiting request
    therefore looks once a second.
    """

    def __init__(self, tails: Tails, clock: Clock) -> None:
        self._tails = tails
        self._clock = clock
        self.watchers = Watchers[str]()
        """By the names of containers."""

    def announce(self, container: str, states: Iterable[State]) -> None:
        """Announce messages in new states: those that are ready, and those that soon will be."""
        now = self._clock.now_ms()
        live = [state for state in states if state.is_live(now)]
        due = [state.ready_at for state in live if state.ready_at > now]
        if due:
            known = self._tails.known(container)
            if known.due_at is not None:
                known.due_at = min(known.due_at, *due)
            self.watchers.tell(container, 0)
        if len(due) < len(live):
            self.watchers.tell(container, len(live) - len(due))

    @contextmanager
    def changing(self, container: str) -> Iterator[None]:
        """Enclose writes of leases and delays: when they fail, it is unknown which were written."""
        known = self._tails.known(container)
        known.something_may_be_ready()
        try:
            yield
        except BaseException:
            known.due_at = None
            self.watchers.tell(container, 1)
            raise
