"""Claims and pops: a listing proposes messages, and each object decides, under the queue's lock.

Each claim has an object of its own, and ends with its last message.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from zaqar_lite.domain.attempts import MAX_CLAIMS, Ended
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import is_claim_id, new_claim_id
from zaqar_lite.domain.limits import MAX_PAGE_BYTES, fitting
from zaqar_lite.domain.models import Claimed, ClaimRequest, QueueRef, RetryPolicy
from zaqar_lite.domain.settlements import Ending
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.messages import ended
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import MOST_EXAMINED, NEVER, SPARE, Reading
from zaqar_lite.storage.swift.tail import Tail

_MAX_MOVED = 20
"""About how many dead letters one claim moves: it holds the lock meanwhile."""
_MAX_PARKED = 100
"""About how many lapsed messages one claim parks."""
_MAX_CLAIMS = 10_000
"""Claims of this process whose messages it remembers, to remove the claim with the last one."""
T = TypeVar("T")


@dataclass(slots=True)
class Chosen:
    """What a claim found: messages to hand out, letters to move, and whether there may be more.

    `parked` counts the lapsed ones whose back-off has begun. Another one may be ready at `until`.
    """

    request: ClaimRequest
    until: int = NEVER
    messages: list[Fetched] = field(default_factory=list)
    bytes: int = 0
    letters: list[Fetched] = field(default_factory=list)
    parked: int = 0
    more: bool = False

    @property
    def wanted(self) -> int:
        """How many messages are still to be found; none when their bodies are enough."""
        is_full = self.bytes >= MAX_PAGE_BYTES
        return 0 if is_full else self.request.limit - len(self.messages)

    @property
    def is_enough(self) -> bool:
        """Whether so many messages were moved or parked that the lock has been held long enough."""
        return len(self.letters) >= _MAX_MOVED or self.parked >= _MAX_PARKED

    def add(self, message: Fetched, now: int) -> None:
        """Add a message to those it belongs to."""
        state, letter = message.state, self.request.retries.dead_letter
        if state.is_claimed_or_parked(now):
            self.parked += 1
            self.until = min(self.until, state.claim_expires_at)
            return
        if not state.move_reason and letter and state.claim_count >= letter.max_claims:
            message = replace(message, state=replace(state, move_reason=MAX_CLAIMS))
        if message.state.move_reason:
            self.letters.append(message)
            return
        self.messages.append(message)
        self.bytes += len(message.content.body)


@dataclass(slots=True)
class Record:
    """A claim's own object: its content type tells its time, its content the names it holds.

    No lease of its messages ends after `ends_at`.
    """

    claim_id: str
    started_at: int
    ttl_ms: int
    ends_at: int
    names: Sequence[str]

    @property
    def content_type(self) -> str:
        """Its time."""
        return layout.content_type("claim", s=self.started_at, t=self.ttl_ms, x=self.ends_at)


class Claiming(Reading):
    """Hand out messages under claims, or for good; read and write claims and leases."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._outstanding: OrderedDict[str, set[str]] = OrderedDict()
        """What claims of this process hold: a claim's object goes with its last message."""
        self._trust_ms = 10_000 if backend.shared else 600_000
        """How long it skips a stretch without ready messages, from the last time that this grew.

        Others may release some there, and what was posted there may be listed late.
        """

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Hand out ready messages under a new claim, or for good; see the seam."""
        take = self._pop if request.removes else self._hold
        container, policy = self._container(queue), request.retries.dead_letter

        async def work(lease: Lease) -> Claimed:
            chosen, claimed = await self._choose(queue, request, lease), Claimed(None)
            if chosen.messages:
                claimed = await take(container, request, chosen.messages, lease)
            claimed.more = chosen.more
            try:
                letters = chosen.letters
                claimed.moved = await self._dead_letters.send(container, letters, policy, lease)
            except Unavailable:  # the next claim goes on with the rest
                if not claimed.messages:
                    raise
            return claimed

        return await self._connection.locked(queue, work, exclusive=not request.removes)

    async def _pop(
        self, container: str, request: ClaimRequest, taken: Sequence[Fetched], lease: Lease
    ) -> Claimed:
        """Remove messages, all at the same time."""
        shown = await self._views(container, taken, details=request.details)
        steps = (self._pop_one(container, message, lease) for message in taken)
        gone = await _confirmed(shown, steps)
        self._tails.known(container).room = None
        return Claimed(None, gone)

    async def _choose(self, queue: QueueRef, request: ClaimRequest, lease: Lease) -> Chosen:
        """Choose ready messages, in order, and the exhausted ones between them."""
        container = self._container(queue)
        tail = await self._tails.load(container, lease)
        known = self._tails.known(container)
        known.tail = tail = await self._connection.check(queue, request.version, tail)
        known.due_at, chosen, start, examined = None, Chosen(request), tail.birth, 0
        nothing = known.nothing_ready
        if nothing is not None and min(nothing[1:]) > self._now():
            start, chosen.until = max(start, nothing[0]), nothing[1]
        else:
            known.nothing_ready = None
        async for page in self._objects.messages(
            container, start=start, first=request.limit + SPARE
        ):
            await self._choose_from(container, page, chosen, lease)
            examined += len(page)
            if not chosen.wanted:
                chosen.more = len(chosen.messages) < request.limit
                return chosen
            chosen.more = examined >= MOST_EXAMINED or chosen.is_enough
            if chosen.more:
                if not (chosen.messages or chosen.is_enough):
                    trusted = self._now() + self._trust_ms
                    known.nothing_ready = (page[-1].position + 1, chosen.until, trusted)
                return chosen
        known.due_at = chosen.until
        return chosen

    async def _choose_from(
        self, container: str, page: Sequence[Listed], chosen: Chosen, lease: Lease
    ) -> None:
        """Choose from what a listing proposes, as far as the objects agree."""
        now, ready = self._now(), list[Listed]()
        for one in page:
            if one.state.is_claimable(now):
                ready.append(one)
            elif one.state.expires_at > now:
                chosen.until = min(chosen.until, one.state.ready_at)
        while ready and chosen.wanted and not chosen.is_enough:
            wanted = min(chosen.wanted, fitting((one.state.size for one in ready), chosen.bytes))
            found = await self._fetch_all(container, [one.name for one in ready[:wanted]])
            ready = ready[wanted:]
            sure = [m for m in found if m.state.is_claimable(self._now())]
            if len(sure) < len(found):
                chosen.until = min(chosen.until, now + 1_000)  # the listing is late
            retries = chosen.request.retries
            steps = (self._end_lapse(container, m, retries, lease, marks=False) for m in sure)
            for message in await together(*steps):
                chosen.add(message, now)

    async def _hold(
        self, container: str, request: ClaimRequest, taken: Sequence[Fetched], lease: Lease
    ) -> Claimed:
        """Mark the messages taken and write the claim, all at the same time."""
        now, claim_id = self._now(), new_claim_id()
        held = [
            replace(
                message,
                state=replace(
                    message.state.held_until(now, request.ttl_ms, request.grace_ms),
                    claim_id=claim_id,
                    claim_count=message.state.claim_count + 1,
                    claim_client=request.client_id,
                    claimed_at=now,
                    ended="",
                ),
            )
            for message in taken
        ]
        names = [message.name for message in held]
        record = Record(claim_id, now, request.ttl_ms, now + request.ttl_ms, names)
        marks = (
            self._mark(container, before, after.state, lease)
            for before, after in zip(taken, held, strict=True)
        )
        name, content = layout.CLAIMS + claim_id, " ".join(names).encode()
        kind, ends = record.content_type, record.ends_at
        try:
            _, marked = await together(
                self._objects.put(container, name, kind, content, lease, ends=ends),
                _confirmed(held, marks),
            )
        except Exception:
            undone = (self._unmark(container, message, claim_id, lease) for message in taken)
            await asyncio.gather(*undone, return_exceptions=True)
            raise
        if not marked:
            return Claimed(None)
        self._outstanding[claim_id] = {message.name for message in marked}
        if len(self._outstanding) > _MAX_CLAIMS:
            self._outstanding.popitem(last=False)
        self._hints.announce(container, (message.state for message in marked))
        return Claimed(claim_id, await self._views(container, marked, details=request.details))

    async def _mark(self, container: str, one: Listed, state: State, lease: Lease) -> bool:
        """Let a claim hold a message; False when it is gone, or the claim does not hold it.

        A mark that failed can't land any more, so the object tells what became of it.
        """
        try:
            return await self._messages.write(container, one, state, lease)
        except Unavailable:
            found = await self._objects.listed(container, one.name)
            return found is not None and found.state.claim_id == state.claim_id

    async def _unmark(self, container: str, message: Fetched, claim_id: str, lease: Lease) -> None:
        """Undo the mark of a claim that could not be made."""
        found = await self._objects.listed(container, message.name)
        if found is not None and found.state.claim_id == claim_id:
            await self._objects.mark_message(container, message.name, message.state, lease)

    async def _pop_one(self, container: str, listed: Listed, lease: Lease) -> bool:
        """Delete a message; False when it still exists, so that its caller is not given it."""
        try:
            await self._messages.remove(container, listed, lease)
        except Unavailable:
            return await self._objects.listed(container, listed.name) is None
        return True

    async def _record(self, container: str, claim_id: str) -> Record | None:
        """Read a live claim; None where there is none of this id."""
        if not is_claim_id(claim_id):
            return None
        reply = await self._objects.get(container, layout.CLAIMS + claim_id)
        if not reply.found:
            return None
        time = layout.parameters(reply.headers["Content-Type"])
        names = reply.body.decode().split()
        record = Record(claim_id, int(time["s"]), int(time["t"]), int(time["x"]), names)
        return record if record.ends_at > self._now() else None

    async def _end_attempt(
        self, container: str, one: Listed, ending: Ending, lease: Lease
    ) -> State:
        """Write the attempt that ends; answer the state that is to be written then."""
        now = self._now() if ending.outcome is Ended.LAPSED else ending.at
        state, attempt = ended(one.state, ending, now)
        await self._messages.add_attempt(container, one, attempt, state.expires_at, lease)
        return state

    async def _end_lapse(
        self, container: str, message: Fetched, retries: RetryPolicy, lease: Lease, *, marks: bool
    ) -> Fetched:
        """End the attempt of a message whose lease has lapsed; answer another one as it is.

        It is done under the lock. A message that is parked now is written here. A message that is
        ready is written here with `marks`, else by the caller. The caller moves dead letters.
        """
        before = message.state
        if not before.has_lapsed(self._now()):
            return message
        ending = Ending.by_lapse(before.claim_expires_at, retries)
        state = await self._end_attempt(container, message, ending, lease)
        if not state.move_reason and (marks or state.claim_expires_at):
            await self._messages.write(container, message, state, lease)
        return replace(message, state=state)

    async def _end(self, container: str, claim_id: str, lease: Lease) -> None:
        """Remove the object of a claim that holds nothing; if that fails, the sweep does."""
        self._outstanding.pop(claim_id, None)
        with suppress(Unavailable):
            await self._objects.remove(container, layout.CLAIMS + claim_id, lease)

    async def _end_empty(self, container: str, gone: Iterable[Listed], lease: Lease) -> None:
        """End those claims of this process whose last message is gone."""
        for one in gone:
            left = self._outstanding.get(one.state.claim_id)
            if left is not None:
                left.discard(one.name)
                if not left:
                    await self._end(container, one.state.claim_id, lease)

    async def _held(self, container: str, record: Record, tail: Tail) -> list[Listed]:
        """What a claim holds by now, as the messages themselves tell; under the lock."""
        found = await together(*(self._objects.listed(container, name) for name in record.names))
        now = self._now()
        return [one for one in found if one and is_held(record.claim_id, one, tail.birth, now)]


def is_held(claim_id: str, listed: Listed, birth: int, now: int) -> bool:
    """Whether a claim holds a message."""
    mine = listed.state.claim_id == claim_id and listed.state.is_claimed(now)
    return mine and listed.exists(birth, now)


async def _confirmed(messages: Sequence[T], writes: Iterable[Awaitable[bool]]) -> list[T]:
    """The messages whose write is certain.

    Raises:
        Unavailable: none is, and for some it could not be found out.
    """
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        if not isinstance(failure, Unavailable):
            raise failure
    good = [m for m, done in zip(messages, outcomes, strict=True) if done is True]
    if failures and not good:
        raise failures[0]
    return good
