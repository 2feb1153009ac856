"""Reading without the lock: lists, messages by id, counts and ranges."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence

from zaqar_lite.domain.ids import Marker, is_message_id
from zaqar_lite.domain.models import Message, Page, QueueRef, Stats
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.objects import together

_SPARE = 20
"""How many entries beyond the limit the first page of a listing has, for those passed over."""


class Reading:
    """Read queues as they are; a listing chooses, each message is then read itself."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._objects = backend.objects

    async def list_messages(
        self,
        queue: QueueRef,
        *,
        marker: Marker | None,
        until: Marker | None,
        limit: int,
        wanted: Callable[[State, int], bool],
        version: int | None,
    ) -> Page:
        """One page; the tail is read before the listing, so that nothing below it is missing."""
        await self._backend.records.check(queue, version)
        container = self._backend.containers.queue(queue)
        after = layout.MESSAGES if marker is None else await self._place(container, marker)
        before = layout.AFTER_MESSAGES if until is None else await self._place(container, until)
        hidden = await self._backend.tails.visible_before(container)
        before = min(before, layout.after_position(hidden - 1))
        page = Page([], None)
        found: list[Message] = []
        page.messages = found
        examined = 0
        pages = self._objects.pages(container, after=after, before=before, first=limit + _SPARE)
        async for entries in pages:
            listed = [Listed(e.name, State.parse(e.content_type)) for e in entries]
            done = 0
            while done < len(listed) and len(found) < limit:
                chosen, done = _choose(listed, done, limit - len(found), wanted, self._now())
                messages = await together(
                    *(self._objects.fetch(container, one.name) for one in chosen)
                )
                now = self._now()
                found += [m.view(now) for m in messages if m is not None and wanted(m.state, now)]
            if done:
                page.marker = listed[done - 1].position
            examined += done
            if len(found) >= limit or (found and examined >= MAX_EXAMINED):
                break
        return page

    def _now(self) -> int:
        return self._backend.clock.now_ms()

    async def _place(self, container: str, marker: Marker) -> str:
        """The name after which a marker's place is: that of the message, wherever it is now."""
        position = marker.position
        if marker.message_id is not None:
            moved = await self._moved_to(container, marker.message_id)
            if moved is not None and await self._objects.state(
                container, layout.message_name(moved, marker.message_id)
            ):
                position = moved
        return layout.after_position(position)

    async def _moved_to(self, container: str, message_id: str) -> int | None:
        reply = await self._objects.head(container, layout.INDEX + message_id)
        if not reply.found:
            return None
        return int(layout.parameters(reply.headers["Content-Type"])["at"], 16)

    async def find(self, container: str, message_id: str) -> Listed | None:
        """Find a message by its id, in any state: at home, or where it was moved to."""
        name = layout.name_at_home(message_id)
        state = await self._objects.state(container, name)
        if state is None:
            position = await self._moved_to(container, message_id)
            if position is None:
                return None
            name = layout.message_name(position, message_id)
            state = await self._objects.state(container, name)
        return None if state is None else Listed(name, state)

    async def fetch(self, container: str, message_id: str) -> Fetched | None:
        """Read a message by its id, in any state."""
        message = await self._objects.fetch(container, layout.name_at_home(message_id))
        if message is None:
            position = await self._moved_to(container, message_id)
            if position is not None:
                name = layout.message_name(position, message_id)
                message = await self._objects.fetch(container, name)
        return message

    async def get_messages(self, queue: QueueRef, ids: Collection[str]) -> Sequence[Message]:
        """Fetch the live ones; see the seam."""
        container = self._backend.containers.queue(queue)
        known = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        found = await together(*(self.fetch(container, message_id) for message_id in known))
        now = self._now()
        return [m.view(now) for m in found if m is not None and m.state.is_live(now)]

    async def listed(self, queue: QueueRef) -> AsyncIterator[Listed]:
        """All messages of a queue as listings show them, in order of position."""
        container = self._backend.containers.queue(queue)
        pages = self._objects.pages(container, prefix=layout.MESSAGES, first=self._objects.page)
        async for entries in pages:
            for entry in entries:
                yield Listed(entry.name, State.parse(entry.content_type))

    async def stats(self, queue: QueueRef) -> Stats:
        """Count from listings; read only the oldest and the newest."""
        now = self._now()
        stats = Stats()
        oldest = newest = None
        async for listed in self.listed(queue):
            if not listed.state.is_live(now):
                continue
            oldest, newest = oldest or listed, listed
            if listed.state.is_claimed(now):
                stats.claimed += 1
            elif listed.state.is_delayed(now):
                stats.delayed += 1
            else:
                stats.ready += 1
        ends = [end.name for end in (oldest, newest) if end is not None]
        container = self._backend.containers.queue(queue)
        messages = await together(*(self._objects.fetch(container, name) for name in ends))
        there = [m for m in messages if m is not None]
        if there:
            stats.oldest, stats.newest = there[0].view(now), there[-1].view(now)
        return stats

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        now = self._now()
        order = [one.position async for one in self.listed(queue) if one.state.is_live(now)]
        ranges = min(count, len(order))
        return [order[len(order) * (index + 1) // ranges - 1] for index in range(ranges)]


def _choose(
    listed: Sequence[Listed],
    start: int,
    count: int,
    wanted: Callable[[State, int], bool],
    now: int,
) -> tuple[list[Listed], int]:
    """The next `count` messages that the listing shows as wanted, and where to go on."""
    chosen: list[Listed] = []
    end = start
    while end < len(listed) and len(chosen) < count:
        if wanted(listed[end].state, now):
            chosen.append(listed[end])
        end += 1
    return chosen, end
