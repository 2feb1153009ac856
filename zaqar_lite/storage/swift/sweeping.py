"""Sweeping: what X-Delete-At would do later, and what crashes left, a few queues at a time."""

from collections.abc import Sequence

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import Swept
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.dead_letters import DeadLetters
from zaqar_lite.storage.swift.layout import Listed, State, Tail
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Entry, together

_QUEUES = 100
"""Queues that one sweep looks at: each costs a listing."""


class Sweeping:
    """Go round the queues of the account; each call goes on where the last one ended."""

    def __init__(self, backend: Backend, dead_letters: DeadLetters) -> None:
        self._backend = backend
        self._objects = backend.objects
        self._dead_letters = dead_letters
        self._after = ("", "")

    async def sweep(self, limit: int) -> Swept:
        """Remove what has expired and finish what a crash cut short; see the seam.

        Nothing has to be promoted or re-admitted: deadlines alone decide.
        """
        container, name = self._after
        prefix = self._backend.containers.queues
        found = [container] if name else []
        found += await self._objects.containers(prefix, after=container, limit=_QUEUES)
        total = Swept()
        for each in found:
            after = name if each == container else ""
            expired, moved, last = await self._tidy(each, after, limit - total.total)
            total = Swept(expired=total.expired + expired, moved=total.moved + moved)
            self._after = (each, last)
            if last or total.total >= limit:
                return total
        if len(found) < _QUEUES:
            self._after = ("", "")
        return total

    async def _tidy(self, container: str, after: str, limit: int) -> tuple[int, int, str]:
        """Tidy one page of a queue: how much expired, how much was moved, where to go on."""
        page = max(min(limit, self._objects.page), 1)
        entries = await self._objects.list(container, after=after, limit=page)
        now = self._backend.clock.now_ms()
        expired = [entry for entry in entries if _is_over(entry, now)]
        cut = [entry for entry in entries if _is_cut(entry)]
        last = entries[-1].name if len(entries) == page else ""
        if not expired and not cut:
            return 0, 0, last

        async def work(lease: Lease) -> tuple[int, int]:
            removed = await together(
                *(self._remove_expired(container, entry, lease) for entry in expired)
            )
            return sum(removed), await self._heal(container, cut, lease)

        try:
            gone, moved = await self._backend.locks.run(container, work)
        except Unavailable:
            return 0, 0, last  # a busy queue is swept the next time round
        return gone, moved, last

    async def _remove_expired(self, container: str, entry: Entry, lease: Lease) -> bool:
        """Remove an entry, if its object agrees with the listing."""
        reply = await self._objects.head(container, entry.name)
        now = self._backend.clock.now_ms()
        if not reply.found or not _is_over(Entry(entry.name, reply.headers["Content-Type"]), now):
            return False
        if entry.name.startswith(layout.MESSAGES):
            listed = Listed(entry.name, State.parse(entry.content_type))
            await self._dead_letters.remove(container, listed, lease)
        else:
            await self._objects.remove(container, entry.name, lease)
        return True

    async def _heal(self, container: str, cut: Sequence[Entry], lease: Lease) -> int:
        messages = [
            Listed(entry.name, State.parse(entry.content_type))
            for entry in cut
            if entry.name.startswith(layout.MESSAGES)
        ]
        if len(messages) < len(cut):
            await self._backend.tails.heal(container, lease)
        return await self._dead_letters.heal(container, messages, lease)


def _is_over(entry: Entry, now: int) -> bool:
    """Whether a message, a claim or a key has passed its deadline; moves are finished first."""
    if entry.name.startswith(layout.MESSAGES):
        state = State.parse(entry.content_type)
        return state.expires_at <= now and not state.leaving
    if entry.name.startswith((layout.CLAIMS, layout.KEYS)):
        return int(layout.parameters(entry.content_type).get("x", now)) < now
    return False


def _is_cut(entry: Entry) -> bool:
    """Whether a crash may have left it in the middle of something."""
    if entry.name == layout.TAIL:
        return bool(Tail.parse(entry.content_type).opened)
    return ";to=" in entry.content_type or ";from=" in entry.content_type
