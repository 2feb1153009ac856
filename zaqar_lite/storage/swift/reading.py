"""Reading without the lock: lists, messages by id, and counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from zaqar_lite.domain.ids import Marker, is_message_id
from zaqar_lite.domain.limits import MAX_PAGE_BYTES, fitting
from zaqar_lite.domain.models import Capability, ListQuery, Message, Page, QueueRef, Stats
from zaqar_lite.storage.base import MAX_EXAMINED, MessageStore
from zaqar_lite.storage.store import Connected
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.messages import DeadLetters, Messages
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.tail import Tail
from zaqar_lite.storage.watchers import Listener, Watch

MOST_EXAMINED = 10_000
"""Entries that one claim examines, or one search for what is due; the next one goes on there."""
NEVER = 1 << 62
L = TypeVar("L", bound=Listed)
Read = Callable[[str, str], Awaitable[L | None]]
"""Read a message, or no more than a listing shows, by container and name."""
_CENSUS = 50
"""Containers on one page of the account's listing."""
SPARE = 20
"""How many entries beyond the limit the first page has: some of them will not be wanted."""


class Reading(Connected[Backend], MessageStore):
    """Read queues as they are; a listing chooses, each message is then read itself."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        shared = {Capability.SHARED} if backend.shared else set()
        self.capabilities = frozenset({Capability.EXCLUSIVE, Capability.DURABLE} | shared)
        self.poll_interval_ms = 1_000 if backend.shared else 60_000
        self._objects = backend.objects
        self._tails = backend.tails
        self._hints = backend.hints
        self._messages = Messages(backend.objects)
        self._dead_letters = DeadLetters(backend, self._messages)

    def _container(self, queue: QueueRef) -> str:
        return self._connection.containers.queue(queue)

    def _now(self) -> int:
        return self._connection.clock.now_ms()

    async def list_messages(self, queue: QueueRef, selection: ListQuery) -> Page:
        """One page; the tail is read before the listing, so that nothing below it is missing."""
        container, limit = self._container(queue), selection.limit
        tail = await self._tails.peek(container)
        await self._connection.check(queue, selection.version, tail)
        start = tail.birth
        if selection.marker is not None:
            start = max(start, await self._marker_position(container, selection.marker) + 1)
        end = self._tails.first_hidden(tail)
        if selection.until is not None:
            end = min(end, await self._marker_position(container, selection.until) + 1)
        before = min(layout.after_position(end - 1), layout.AFTER_MESSAGES)
        unwanted = selection.exclude_client_id and layout.client_digest(selection.exclude_client_id)
        found: list[Message] = []
        marker, examined, size, is_full = None, 0, 0, False
        async for listed in self._objects.messages(
            container, start=start, before=before, first=limit + SPARE
        ):
            now, marker = self._now(), listed[-1].position
            left = [one for one in listed if _wanted(selection, one.state, unwanted, now)]
            while left and len(found) < limit and size < MAX_PAGE_BYTES:
                count = min(limit - len(found), fitting((one.state.size for one in left), size))
                few, left = left[:count], left[count:]
                messages = await self._fetch_all(container, [one.name for one in few])
                now = self._now()
                wanted = [m for m in messages if _wanted(selection, m.state, unwanted, now)]
                found += await self._views(container, wanted, details=selection.details)
                size += sum(len(message.content.body) for message in wanted)
                is_full = len(found) >= limit or size >= MAX_PAGE_BYTES
            examined += len(listed)
            if is_full or (found and examined >= MAX_EXAMINED):
                break
        return Page(found, found[-1].position if found else marker)

    async def _fetch_all(self, container: str, names: Collection[str]) -> list[Fetched]:
        """Read messages at once; those that are gone are left out."""
        found = await together(*(self._objects.fetch(container, name) for name in names))
        return [message for message in found if message is not None]

    async def _views(
        self, container: str, messages: Sequence[Fetched], *, details: bool
    ) -> list[Message]:
        """Show messages to a reader, with their attempts when asked."""
        now = self._now()
        views = [message.view(now) for message in messages]
        if details:
            reads = (self._messages.all_attempts(container, message) for message in messages)
            for view, attempts in zip(views, await together(*reads), strict=True):
                view.attempts = attempts
        return views

    async def _marker_position(self, container: str, marker: Marker) -> int:
        """The position of a marker: that of the message, wherever it is now."""
        found: Listed | None = None
        if marker.message_id is not None:
            found = await self._read_by_id(container, marker.message_id, self._objects.listed)
        return marker.position if found is None else found.position

    async def _moved_to(self, container: str, message_id: str) -> int | None:
        reply = await self._objects.head(container, layout.INDEX + message_id)
        if not reply.found:
            return None
        return int(layout.parameters(reply.headers["Content-Type"])["at"], 16)

    async def _read_by_id(self, container: str, message_id: str, read: Read[L]) -> L | None:
        """Read a message where it was posted, or where it was moved to."""
        found = await read(container, layout.original_name(message_id))
        if found is None:
            position = await self._moved_to(container, message_id)
            if position is not None:
                found = await read(container, layout.message_name(position, message_id))
        return found

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch the live ones; see the seam."""
        container = self._container(queue)
        live = await self._find_live(container, ids, self._objects.fetch)
        return await self._views(container, live, details=details)

    async def _find_live(
        self, container: str, ids: Collection[str], read: Read[L], tail: Tail | None = None
    ) -> list[L]:
        """The live messages of these ids, as their objects tell; the tail is read unless known."""
        known = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        reads = together(*(self._read_by_id(container, key, read) for key in known))
        if tail is None:
            peeked, found = await asyncio.gather(self._tails.peek(container), reads)
            birth = peeked.birth
        else:
            birth, found = tail.birth, await reads
        now = self._now()
        return [one for one in found if one is not None and one.exists(birth, now)]

    async def stats(self, queue: QueueRef, *, ranges: int = 0) -> Stats:
        """Count from listings; read only the oldest and the newest."""
        container, now = self._container(queue), self._now()
        stats, ends, order = Stats(), list[str](), list[int]()
        async for listed in self._live(container):
            if ranges:
                order.append(listed.position)
            ends[1:] = [listed.name]
            stats.bytes += listed.state.size
            if listed.state.is_claimed(now):
                stats.claimed += 1
            elif listed.state.is_claimed_or_parked(now) or listed.state.is_delayed(now):
                stats.delayed += 1
            else:
                if not stats.ready:
                    since = max(listed.position // 1000, listed.state.ready_at)
                    stats.ready_since = min(now, since)
                stats.ready += 1
        ranges = min(ranges, len(order))
        stats.cuts = [order[len(order) * (index + 1) // ranges - 1] for index in range(ranges)]
        shown = await self._fetch_all(container, ends)
        if shown:
            stats.oldest, stats.newest = shown[0].view(self._now()), shown[-1].view(self._now())
        return stats

    async def _live(self, container: str) -> AsyncIterator[Listed]:
        """The live messages in order of position, by listings alone: they begin with the tail."""
        tail: Tail | None = None
        async for page in self._objects.pages(
            container, after=layout.BEFORE_TAIL, before=layout.AFTER_MESSAGES
        ):
            now, is_tail = self._now(), page[0].name == layout.TAIL
            if is_tail or tail is None:
                listed = page[0].content_type
                tail = Tail.parse(listed) if is_tail else await self._tails.peek(container)
            for name, text in page[is_tail:]:
                found = Listed(name, State.parse(text))
                if found.exists(tail.birth, now):
                    yield found

    async def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        """Name the queues by the account's listing; each costs a read of its tail, once."""
        prefix, after = self._connection.containers.queues, ""
        while True:
            listed = await self._objects.list("", prefix=prefix, after=after, limit=_CENSUS)
            page = [entry.name for entry in listed]
            projects = await together(*map(self._tails.project, page))
            for container, project in zip(page, projects, strict=True):
                if project:
                    yield QueueRef(project, self._connection.containers.queue_name(container))
            if len(page) < _CENSUS:
                return
            after = page[-1]

    async def next_due(self, queue: QueueRef) -> int | None:
        """How long until a message becomes ready by time; what was found is remembered."""
        container = self._container(queue)
        known = self._tails.known(container)
        due_at = known.due_at
        if due_at is None:
            known.due_at = NEVER  # what is noted from now on lowers it
            try:
                due_at = await self._find_due(container)
            except BaseException:
                known.due_at = None
                raise
            if known.due_at is not None:  # else it became unknown meanwhile
                known.due_at = due_at = min(known.due_at, due_at)
        return None if due_at == NEVER else max(0, due_at - self._now())

    async def _find_due(self, container: str) -> int:
        """When the first of the listed messages becomes ready that are not yet."""
        tail = await self._tails.peek(container)
        now, due_at, examined = self._now(), NEVER, 0
        async for page in self._objects.messages(container, start=tail.birth, first=SPARE):
            states = [one.state for one in page if one.state.is_live(now)]
            if any(state.has_lapsed(now) for state in states):
                return now
            ready_at = (state.ready_at for state in states)
            due_at = min([due_at, *(at for at in ready_at if at > now)])
            examined += len(page)
            if examined >= MOST_EXAMINED:
                return min(due_at, now + self.poll_interval_ms)
        return due_at

    async def watch(self, queue: QueueRef, listener: Listener) -> Watch:
        """Begin to announce what this process made ready; see the seam."""
        end = self._hints.watchers.add(self._container(queue), listener)
        return Watch(partial(self.next_due, queue), end)


def _wanted(selection: ListQuery, state: State, unwanted: str | None, now: int) -> bool:
    """Whether a listing shows a message in this state that another than `unwanted` posted."""
    if not state.is_live(now) or state.poster == unwanted:
        return False
    if selection.group is not None and state.group != layout.digest(selection.group):
        return False
    if state.is_claimed_or_parked(now):
        return selection.include_claimed
    return selection.include_delayed or not state.is_delayed(now)
