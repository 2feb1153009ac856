"""Reading messages in memory, and who waits for them."""

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
from zaqar_lite.storage.memory.pairs import POSITION, pair
from zaqar_lite.storage.memory.queue import LAST_ID, Queue
from zaqar_lite.storage.memory.state import State


class Reading(MessageStore):
    """The part of the message store that only reads, and removes what has expired."""

    def __init__(self, shared: State, clock: Clock) -> None:
        self._state = shared
        self._clock = clock
        self._watched: Counter[QueueRef] = Counter()
        self._listener: Listener | None = None

    @property
    def examined(self) -> int:
        """How many entries operations have examined on the queues that exist now (for tests)."""
        return sum(queue.examined for queue in self._state.queues.values())

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the state goes with the stores."""

    async def ping(self) -> None:
        """Do nothing: the store always answers."""

    async def recall(
        self, ref: QueueRef, messages: Collection[str], batch: str | None = None
    ) -> Recalled:
        """Tell what is remembered of keys; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return Recalled()
        now = self._clock.now_ms()

        def live(keys: Mapping[str, Known], texts: Collection[str]) -> dict[str, Remembered]:
            known = ((text, keys.get(text)) for text in texts)
            return {
                text: Remembered(one.ids, one.digest)
                for text, one in known
                if one is not None and one.until > now
            }

        batches = live(queue.batch_keys, () if batch is None else (batch,))
        return Recalled(next(iter(batches.values()), None), live(queue.message_keys, messages))

    async def remembers(self, ref: QueueRef) -> bool:
        """Whether a key is remembered; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return False
        queue.forget_keys(self._clock.now_ms(), MAX_EXAMINED)
        return bool(queue.message_keys or queue.batch_keys)

    async def list_messages(self, ref: QueueRef, selection: Selection) -> Page:
        """List messages in steps of at most MAX_EXAMINED entries; see the seam."""
        self._state.check_version(ref, selection.version)
        queue = self._state.queues.get(ref)
        if queue is None:
            return Page((), None)
        after, last = _resolve(selection.marker, queue), _resolve(selection.until, queue)
        include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
        excluded = selection.exclude_client_id
        page = Page((), None)
        while queue is not None:
            now = self._clock.now_ms()
            found: list[Message] = []
            examined = 0
            group = selection.group
            order = queue.order if group is None else queue.groups.get(group, _NO_POSITIONS)
            positions = order.irange(after, last, inclusive=(False, True))
            for position in islice(positions, MAX_EXAMINED):
                examined += 1
                entry = queue.entries[position]
                page.marker = after = position
                if (
                    entry.expires_at > now
                    and (include_claimed or not entry.is_claimed_or_parked(now))
                    and (include_delayed or not entry.is_still_delayed(now))
                    and (excluded is None or entry.client_id != excluded)
                ):
                    found.append(entry.full_view(now, details=selection.details))
                    if len(found) == selection.limit:
                        break
            queue.examined += examined
            if found or examined < MAX_EXAMINED:
                page.messages = found
                break
            await self._state.turns.wait()
            queue = self._state.queues.get(ref)
        return page

    async def get_messages(
        self, ref: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return ()
        now = self._clock.now_ms()
        found = [queue.live(key, now) for key in dict.fromkeys(ids)]
        return [entry.full_view(now, details=details) for entry in found if entry is not None]

    async def stats(self, ref: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        while (queue := self._state.queues.get(ref)) is not None:
            now = self._clock.now_ms()
            if queue.expire(now, MAX_EXAMINED) == MAX_EXAMINED:
                await self._state.turns.wait()  # much has expired
                continue
            if not queue.entries:
                break
            oldest, newest = (queue.entries[queue.order[end]].full_view(now) for end in (0, -1))
            return Stats(*_counts(queue, now), oldest, newest, _ready_since(queue, now))
        return Stats()

    async def census(self) -> AsyncIterator[QueueRef]:
        """Name the queues that hold something; see the seam."""
        for queue in list(self._state.queues):
            yield queue

    async def split(self, ref: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        queue = self._state.queues.get(ref)
        if queue is None:
            return ()
        queue.expire(self._clock.now_ms(), MAX_EXAMINED)
        total = len(queue.order)
        ranges = min(count, total)
        return [queue.order[total * (index + 1) // ranges - 1] for index in range(ranges)]

    async def next_due(self, ref: QueueRef) -> int | None:
        """How long until a message becomes ready by time; see the seam."""
        queue = self._state.queues.get(ref)
        instant = None if queue is None else queue.next_ready_at()
        return None if instant is None else max(0, instant - self._clock.now_ms())

    def listen(self, listener: Listener) -> None:
        """Announce to `listener` what became ready; see the seam."""
        self._listener = listener

    async def watch(self, ref: QueueRef) -> None:
        """Begin to announce a queue; see the seam."""
        self._watched[ref] += 1

    async def unwatch(self, ref: QueueRef) -> None:
        """End what `watch` began; see the seam."""
        self._watched[ref] -= 1
        if self._watched[ref] <= 0:
            del self._watched[ref]

    def _announce(self, ref: QueueRef, count: int) -> None:
        if self._listener is not None and ref in self._watched:
            self._listener(ref, count)


_NO_POSITIONS: SortedList[int] = SortedList()


def _resolve(marker: Marker | None, queue: Queue) -> int | None:
    """The position that a marker stands for in this queue."""
    if marker is None:
        return None
    entry = None if marker.message_id is None else queue.find(marker.message_id)
    return marker.position if entry is None else entry.position


def _ready_since(queue: Queue, now: int) -> int | None:
    """Since when the first ready entry, or else the first due one, has been ready."""
    if queue.ready:
        entry = queue.entries[queue.ready[0] & POSITION]
        return min(now, max(entry.created_at, entry.delay_expires_at or 0))
    due = queue.next_ready_at()
    return due if due is not None and due <= now else None


def _counts(queue: Queue, now: int) -> tuple[int, int, int]:
    """How many entries are ready, delayed or parked, and claimed; call `expire` before."""
    due = queue.delayed.bisect_right(pair(now, POSITION))
    back = queue.parked.bisect_right(pair(now, POSITION))
    lapsed = 0
    for _, claim_id in queue.lapses.irange(None, (now, LAST_ID)):
        claim = queue.claims[claim_id]
        if claim.is_even:
            queue.examined += 1
            lapsed += len(claim.held)
        else:
            queue.examined += len(claim.held)
            lapsed += sum(queue.entries[at].lease_until <= now for at in claim.held)
    held = len(queue.entries) - len(queue.ready) - len(queue.delayed) - len(queue.parked)
    waiting = len(queue.delayed) - due + len(queue.parked) - back
    return len(queue.ready) + due + back + lapsed, waiting, held - lapsed
