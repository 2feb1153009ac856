"""Sweeping: remove what has ended, finish what a crash cut short, a few queues at a time.

Swift's X-Delete-At would also remove what has expired, but later.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.models import QueueRef, RetryPolicy, RetryPolicyOf, SweepResult, no_retries
from zaqar_lite.storage.swift import layout, objects
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.claiming import Claiming
from zaqar_lite.storage.swift.layout import Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import UNLOCKED, Entry, together
from zaqar_lite.storage.swift.tail import Tail

_QUEUES = 100
"""Queues that one sweep looks at: each costs a listing."""
_REST_MS = 60_000
"""How long the sweep rests after a round in which it found nothing: listings cost."""
_LAPSED = 100
"""How many lapsed leases a step ends under the lock; then the lock is free for a moment."""
_KEEP_MS = 3_600_000
"""How long the tail of a dropped queue stays: it tells which late objects are of that queue."""


class Sweeping(Claiming):
    """Go round the queues of the account; each call goes on where the last one ended."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._after = ("", "")
        self._idle = True
        """Whether this round has found nothing so far."""
        self._rests_until = 0
        self._swept_tail = Tail()

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Remove what is over and finish what a crash cut short; see the seam.

        Nothing has to be promoted: deadlines alone decide.
        """
        if self._now() < self._rests_until:
            return SweepResult()
        container, name = self._after
        prefix = self._connection.containers.queues
        found = [container] if name else []
        listed = await self._objects.list("", prefix=prefix, after=container, limit=_QUEUES)
        found += [entry.name for entry in listed]
        total = SweepResult()
        for each in found:
            after = name if each == container else ""
            swept, last = await self._tidy(each, after, limit - total.total, retries_of)
            total = total.plus(swept)
            self._after = (each, last)
            self._idle = self._idle and not total.total
            if last or total.total >= limit:
                return total
        if len(found) < _QUEUES:
            self._after = ("", "")
            self._rests_until = self._now() + _REST_MS if self._idle else 0
            self._idle = True
        return total

    async def _tidy(
        self, container: str, after: str, limit: int, retries_of: RetryPolicyOf
    ) -> tuple[SweepResult, str]:
        """Tidy one page of a queue: what was done, and where to go on."""
        page, now = max(min(limit, objects.PAGE), 1), self._now()
        entries = await self._objects.list(container, after=after, limit=page)
        whole = len(entries) < page
        if not after:
            tails = [Tail.parse(e.content_type) for e in entries if e.name == layout.TAIL]
            self._swept_tail = tails[0] if tails else await self._tails.peek(container)
        tail = self._swept_tail
        buried = {entry.name for entry in entries if _is_of_earlier_life(entry.name, tail)}
        await together(*(self._objects.remove(container, name, UNLOCKED) for name in buried))
        done = SweepResult(deleted=len(buried))
        messages = [
            Listed(entry.name, State.parse(entry.content_type))
            for entry in entries
            if entry.name.startswith(layout.MESSAGES) and entry.name not in buried
        ]
        self._hints.announce(container, (m.state for m in messages if m.state.is_claimable(now)))
        over = [e for e in entries if e.name not in buried and _is_over(e, tail, now)]
        cut = [one for one in messages if one.state.leaving or one.state.arriving]
        lapsed = [m.name for m in messages if m.state.is_live(now) and m.state.has_lapsed(now)]
        names = [entry.name for entry in entries]
        left = not after and whole and (not names or (_is_long_gone(tail, now) and len(names) == 1))

        async def work(lease: Lease) -> SweepResult:
            newest = await self._tails.load(container, lease)  # finishes a post first
            gone = await together(*(self._remove_over(container, e, tail, lease) for e in over))
            moved = await self._dead_letters.finish_moves(container, cut, lease)
            if left and (_is_long_gone(newest, now) or not newest.last):
                await self._objects.remove(container, layout.TAIL, lease)
                await self._objects.remove_container(container, lease)
                self._tails.known(container).written = 0
            return SweepResult(expired=sum(gone), moved=moved)

        with suppress(Unavailable):  # the next round sweeps a busy queue
            if over or cut or left or tail.opened:
                done = done.plus(await self._connection.locked(container, work))
            if lapsed and tail.project:
                queue = QueueRef(tail.project, self._connection.containers.queue_name(container))
                retries = await retries_of(queue)
                if retries.dead_letter is not None and retries.dead_letter.target is None:
                    # A record of another store asks for its list; an error would end the sweep.
                    retries = retries._replace(dead_letter=None)
                for first in range(0, len(lapsed), _LAPSED):
                    some = lapsed[first : first + _LAPSED]
                    step = partial(self._end_lapsed, container, some, retries)
                    done = done.plus(await self._connection.locked(container, step))
        return done, "" if whole else names[-1]

    async def _end_lapsed(
        self, container: str, names: Sequence[str], retries: RetryPolicy, lease: Lease
    ) -> SweepResult:
        """End the lapsed leases among these messages, and move what has failed too often."""
        birth = (await self._tails.load(container, lease)).birth
        now, letter = self._now(), retries.dead_letter
        found = await self._fetch_all(container, names)
        live = [m for m in found if m.exists(birth, now) and m.state.has_lapsed(now)]
        steps = (self._end_lapse(container, m, retries, lease, marks=True) for m in live)
        with self._hints.changing(container):
            ended = await together(*steps)
            letters = [message for message in ended if message.state.move_reason]
            moved = await self._dead_letters.send(container, letters, letter, lease)
        self._tails.known(container).due_at = None
        self._hints.announce(container, (m.state for m in ended if m.state.claim_expires_at))
        letters_in = {letter.target} if moved and letter and letter.target else set()
        return SweepResult(lapsed=len(ended) - moved, moved=moved, letters_in=frozenset(letters_in))

    async def _remove_over(self, container: str, entry: Entry, tail: Tail, lease: Lease) -> bool:
        """Remove an entry, if its object agrees with the listing."""
        reply = await self._objects.head(container, entry.name)
        if not reply.found:
            return False
        newest = Entry(entry.name, reply.headers["Content-Type"])
        if not _is_over(newest, tail, self._now()):
            return False
        if entry.name.startswith(layout.MESSAGES):
            listed = Listed(entry.name, State.parse(newest.content_type))
            await self._messages.remove(container, listed, lease)
        else:
            await self._objects.remove(container, entry.name, lease)
        return True


def _is_long_gone(tail: Tail, now: int) -> bool:
    """Whether a tail belongs to a queue that was dropped long ago."""
    return 0 < tail.gone < now - _KEEP_MS


def _is_of_earlier_life(name: str, tail: Tail) -> bool:
    """Whether a message, or a history, is of a life of the queue that a purge or a drop ended."""
    has_position = name.startswith((layout.MESSAGES, layout.ATTEMPTS))
    return has_position and layout.position_of(name) < tail.birth


def _is_over(entry: Entry, tail: Tail, now: int) -> bool:
    """Whether an entry has passed its end; a message that moves is moved first."""
    if entry.name.startswith(layout.MESSAGES):
        state = State.parse(entry.content_type)
        return state.expires_at <= now and not state.leaving
    found = layout.parameters(entry.content_type)
    if entry.name.startswith(layout.INDEX):
        return int(found.get("at", "0"), 16) < tail.birth
    if entry.name.startswith((layout.CLAIMS, layout.KEYS)):
        return int(found.get("x", now)) < now
    if entry.name.startswith(layout.ATTEMPTS):
        return int(found.get("e", now)) < now
    return False
