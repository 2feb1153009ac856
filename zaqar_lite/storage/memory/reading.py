"""Reading messages in memory, and who waits for them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from itertools import islice

from sortedcontainers import SortedList

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import Message, Page, QueueRef, Selection, Stats
from zaqar_lite.domain.posts import Recalled, Remembered
from zaqar_lite.storage.base import MAX_EXAMINED, Listener, MessageStore
from zaqar_lite.storage.memory.entries import Known
from zaqar_lite.storage.memory.queue import Queue
from zaqar_lite.storage.memory.state import State


class Reading(MessageStore):
    """The part of the message store that changes nothing but what time alone has ended."""

    def __init__(self, shared: State, clock: Clock) -> None:
        self._state = shared
        self._clock = clock
        self._watched: Counter[QueueRef] = Counter()
        self._listener: Listener | None = None

    @property
    def examined(self) -> int:
        """How many entries the operations on the queues there are have looked at (for tests)."""
        return sum(queue.examined for queue in self._state.queues.values())

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the state goes with the stores."""

    async def ping(self) -> None:
        """Do nothing: the store always answers."""

    async def recall(
        self, queue: QueueRef, messages: Collection[str], batch: str | None = None
    ) -> Recalled:
        """Tell what is remembered of keys; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return Recalled()
        now = self._clock.now_ms()

        def live(keys: Mapping[str, Known], texts: Collection[str]) -> dict[str, Remembered]:
            known = ((text, keys.get(text)) for text in texts)
            return {
                text: Remembered(one.ids, one.digest)
                for text, one in known
                if one is not None and one.until > now
            }

        batches = live(there.batch_keys, () if batch is None else (batch,))
        return Recalled(next(iter(batches.values()), None), live(there.message_keys, messages))

    async def remembers(self, queue: QueueRef) -> bool:
        """Whether a key is remembered; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return False
        there.forget_keys(self._clock.now_ms(), MAX_EXAMINED)
        return bool(there.message_keys or there.batch_keys)

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
        self._state.check_version(queue, selection.version)
        there = self._state.queues.get(queue)
        if there is None:
            return Page((), None)
        after, last = _resolve(selection.marker, there), _resolve(selection.until, there)
        include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
        excluded = selection.exclude_client_id
        page = Page((), None)
        while there is not None:
            now = self._clock.now_ms()
            found: list[Message] = []
            examined = 0
            group = selection.group
            order = there.order if group is None else there.groups.get(group, _NOTHING)
            positions = order.irange(after, last, inclusive=(False, True))
            for position in islice(positions, MAX_EXAMINED):
                examined += 1
                entry = there.entries[position]
                page.marker = after = position
                if (
                    entry.expires_at > now
                    and (include_claimed or not entry.is_away(now))
                    and (include_delayed or not entry.waits(now))
                    and (excluded is None or entry.client_id != excluded)
                ):
                    found.append(entry.full_view(now, details=selection.details))
                    if len(found) == selection.limit:
                        break
            there.examined += examined
            if found or examined < MAX_EXAMINED:
                page.messages = found
                break
            await asyncio.sleep(0)  # others may act between two steps: the marker holds its place
            there = self._state.queues.get(queue)
        return page

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return ()
        now = self._clock.now_ms()
        found = [there.live(key, now) for key in dict.fromkeys(ids)]
        return [entry.full_view(now, details=details) for entry in found if entry is not None]

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        while (there := self._state.queues.get(queue)) is not None:
            now = self._clock.now_ms()
            if there.expire(now, MAX_EXAMINED) == MAX_EXAMINED:
                await asyncio.sleep(0)  # much has expired: others act between two steps
                continue
            if not there.entries:
                break
            oldest, newest = (there.entries[there.order[end]].full_view(now) for end in (0, -1))
            return Stats(*there.counts(now), oldest, newest, there.ready_since(now))
        return Stats()

    async def census(self) -> AsyncIterator[QueueRef]:
        """Name the queues that hold something; see the seam."""
        for queue in list(self._state.queues):
            yield queue

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        there = self._state.queues.get(queue)
        if there is None:
            return ()
        there.expire(self._clock.now_ms(), MAX_EXAMINED)
        total = len(there.order)
        ranges = min(count, total)
        return [there.order[total * (index + 1) // ranges - 1] for index in range(ranges)]

    async def next_due(self, queue: QueueRef) -> int | None:
        """How long until a message becomes ready by time; see the seam."""
        there = self._state.queues.get(queue)
        instant = None if there is None else there.ripens_at()
        return None if instant is None else max(0, instant - self._clock.now_ms())

    def listen(self, listener: Listener) -> None:
        """Announce to `listener` what became ready; see the seam."""
        self._listener = listener

    async def watch(self, queue: QueueRef) -> None:
        """Begin to announce a queue; see the seam."""
        self._watched[queue] += 1

    async def unwatch(self, queue: QueueRef) -> None:
        """End what `watch` began; see the seam."""
        self._watched[queue] -= 1
        if self._watched[queue] <= 0:
            del self._watched[queue]

    def _announce(self, queue: QueueRef, count: int) -> None:
        if self._listener is not None and queue in self._watched:
            self._listener(queue, count)


_NOTHING: SortedList[int] = SortedList()


def _resolve(marker: Marker | None, there: Queue) -> int | None:
    """The position that a marker means in this queue."""
    if marker is None:
        return None
    entry = there.ids.get(marker.message_id) if marker.message_id is not None else None
    return marker.position if entry is None else entry.position
