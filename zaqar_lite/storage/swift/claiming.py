"""Claims and pops: a listing proposes messages, and each object decides, under the queue's lock.

Each claim has an object of its own, and ends with its last message.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from zaqar_lite.domain.attempts import MAX_CLAIMS, Ended
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import is_claim_id, new_claim_id
from zaqar_lite.domain.models import Claimed, ClaimRequest, QueueRef, RetryPolicy
from zaqar_lite.domain.refusals import no_claim
from zaqar_lite.domain.settlements import Ending
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.ending import ended
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import MOST_EXAMINED, NEVER, SPARE, Reading
from zaqar_lite.storage.swift.tail import Tail

_MAX_MOVED = 20
"""About how many dead letters one claim moves: it holds the lock meanwhile."""
_MAX_PARKED = 100
"""About how many lapsed messages one claim parks."""
_MAX_CLAIMS = 10_000
"""Claims of this process whose messages it remembers, to remove the claim with the last one."""
_TRUST_MS = 10_000
"""How long a process skips a stretch without ready messages: others may release some there."""
T = TypeVar("T")


@dataclass(slots=True)
class Chosen:
    """What a claim found: messages to hand out, letters to move, and whether there may be more.

    `parked` counts the lapsed ones whose back-off has begun.
    """

    messages: list[Fetched] = field(default_factory=list)
    letters: list[Fetched] = field(default_factory=list)
    parked: int = 0
    more: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether so many messages were moved or parked that the lock has been held long enough."""
        return len(self.letters) >= _MAX_MOVED or self.parked >= _MAX_PARKED

    def add(self, message: Fetched, request: ClaimRequest, now: int) -> Sequence[int]:
        """Add a message to those it belongs to; answer when it is ready if it is parked."""
        state, letter = message.state, request.retries.dead_letter
        if state.is_claimed_or_parked(now):
            self.parked += 1
            return [state.claim_expires_at]
        if not state.move_reason and letter and state.claim_count >= letter.max_claims:
            message = message.with_state(replace(state, move_reason=MAX_CLAIMS))
        (self.letters if message.state.move_reason else self.messages).append(message)
        return ()


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

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Hand out ready messages under a new claim, or for good; see the seam."""
        take = self._pop if request.removes else self._hold

        async def work(lease: Lease) -> Claimed:
            chosen, taken = await self._choose(queue, request, lease), Claimed(None)
            if chosen.messages:
                taken = await take(queue, request, chosen.messages, lease)
            return await self._with_letters(queue, request, chosen, taken, lease)

        return await self._connection.locked(queue, work, exclusive=not request.removes)

    async def _pop(
        self, queue: QueueRef, request: ClaimRequest, taken: Sequence[Fetched], lease: Lease
    ) -> Claimed:
        """Remove messages, all at the same time."""
        container = self._container(queue)
        shown = await self._views(container, taken, details=request.details)
        steps = (self._pop_one(container, message.listed, lease) for message in taken)
        gone = await _confirmed(shown, steps)
        self._tails.known(container).room = None
        return Claimed(None, gone)

    async def _with_letters(
        self, queue: QueueRef, request: ClaimRequest, chosen: Chosen, claimed: Claimed, lease: Lease
    ) -> Claimed:
        """Move the exhausted messages that were found, and note how many.

        The claim is answered even when a move fails; the next claim goes on with the rest.
        """
        claimed.more = chosen.more
        source, policy = self._container(queue), request.retries.dead_letter
        try:
            claimed.moved = await self._dead_letters.send(source, chosen.letters, policy, lease)
        except Unavailable:
            if not claimed.messages:
                raise
        return claimed

    async def _choose(self, queue: QueueRef, request: ClaimRequest, lease: Lease) -> Chosen:
        """Choose ready messages, in order, and the exhausted ones between them."""
        container = self._container(queue)
        tail = await self._tails.load(container, lease)
        known = self._tails.known(container)
        known.tail = tail = await self._connection.check(queue, request.version, tail)
        chosen, start, until = Chosen(), tail.birth, NEVER
        known.due_at = None
        if known.nothing_ready is not None:
            position, until = known.nothing_ready
            if until > self._now():
                start = position
            else:
                known.nothing_ready, until = None, NEVER
        examined = 0
        async for page in self._objects.messages(
            container, start=start, first=request.limit + SPARE
        ):
            until = min(
                until, await self._choose_from_page(container, page, request, chosen, lease)
            )
            examined += len(page)
            if len(chosen.messages) >= request.limit:
                break
            chosen.more = examined >= MOST_EXAMINED or chosen.is_enough
            if chosen.more:
                if not (chosen.messages or chosen.is_enough):
                    until = (
                        min(until, self._now() + _TRUST_MS) if self._connection.shared else until
                    )
                    known.nothing_ready = (page[-1].position + 1, until)
                break
        else:
            known.due_at = until
        return chosen

    async def _choose_from_page(
        self,
        container: str,
        listed: Sequence[Listed],
        request: ClaimRequest,
        chosen: Chosen,
        lease: Lease,
    ) -> int:
        """Choose from one page; answer when another message of it may be ready at the earliest."""
        now = self._now()
        ready = [one.name for one in listed if one.state.is_claimable(now)]
        waiting = [
            one.state.ready_at
            for one in listed
            if one.state.expires_at > now and not one.state.is_claimable(now)
        ]
        start = 0
        while start < len(ready) and not chosen.is_enough:
            wanted = request.limit - len(chosen.messages)
            if wanted <= 0:
                break
            found = await self._fetch_all(container, ready[start : start + wanted])
            start += wanted
            sure = [m for m in found if m.state.is_claimable(self._now())]
            if len(sure) < len(found):
                waiting.append(now + 1_000)  # the listing is late
            steps = (
                self._end_lapse(container, m, request.retries, lease, marks=False) for m in sure
            )
            for message in await together(*steps):
                waiting += chosen.add(message, request, now)
        return min(waiting, default=NEVER)

    async def _hold(
        self, queue: QueueRef, request: ClaimRequest, taken: Sequence[Fetched], lease: Lease
    ) -> Claimed:
        """Mark the messages taken and write the claim, all at the same time."""
        container = self._container(queue)
        now = self._now()
        claim_id = new_claim_id()
        held = [
            message.with_state(
                replace(
                    message.state.held_until(now, request.ttl_ms, request.grace_ms),
                    claim_id=claim_id,
                    claim_count=message.state.claim_count + 1,
                    claim_client=request.client_id,
                    claimed_at=now,
                    ended="",
                )
            )
            for message in taken
        ]
        ends_at = now + request.ttl_ms
        record = Record(claim_id, now, request.ttl_ms, ends_at, [m.listed.name for m in held])
        marks = (
            self._mark(container, before.listed, after.state, lease)
            for before, after in zip(taken, held, strict=True)
        )
        recorded, marked = await asyncio.gather(
            self._put_record(container, record, lease),
            _confirmed(held, marks),
            return_exceptions=True,
        )
        failure = recorded if isinstance(recorded, BaseException) else marked
        if isinstance(failure, BaseException):
            await asyncio.gather(
                *(self._unmark(container, m, claim_id, lease) for m in taken),
                return_exceptions=True,
            )
            raise failure
        if isinstance(marked, BaseException) or not marked:
            return Claimed(None)
        self._watch_end(claim_id, {message.listed.name for message in marked})
        self._hints.announce_due(container, ends_at)
        return Claimed(claim_id, await self._views(container, marked, details=request.details))

    async def _mark(self, container: str, one: Listed, state: State, lease: Lease) -> bool:
        """Let a claim hold a message; False when it is gone, or the claim does not hold it.

        A mark that failed can't land any more, so the object tells what became of it.
        """
        try:
            return await self._mark_held(container, one, state, lease)
        except Unavailable:
            found = await self._objects.state(container, one.name)
            return found is not None and found.claim_id == state.claim_id

    async def _unmark(self, container: str, message: Fetched, claim_id: str, lease: Lease) -> None:
        """Undo the mark of a claim that could not be made."""
        state = await self._objects.state(container, message.listed.name)
        if state is not None and state.claim_id == claim_id:
            await self._objects.mark_message(container, message.listed.name, message.state, lease)

    async def _pop_one(self, container: str, listed: Listed, lease: Lease) -> bool:
        """Delete a message; False when it still exists, so that its caller is not given it."""
        try:
            await self._dead_letters.remove(container, listed, lease)
        except Unavailable:
            return await self._objects.state(container, listed.name) is None
        return True

    async def _put_record(self, container: str, record: Record, lease: Lease) -> None:
        await self._objects.put(
            container,
            layout.CLAIMS + record.claim_id,
            record.content_type,
            " ".join(record.names).encode(),
            lease,
            ends=record.ends_at,
        )

    async def _mark_record(self, container: str, record: Record, lease: Lease) -> bool:
        """Write a claim's time anew; False when the object is gone."""
        name, ends = layout.CLAIMS + record.claim_id, record.ends_at
        return await self._objects.mark(container, name, record.content_type, lease, ends=ends)

    async def _record(self, container: str, claim_id: str) -> Record:
        """Read a live claim.

        Raises:
            NotFound: there is none of this id.
        """
        if is_claim_id(claim_id):
            reply = await self._objects.get(container, layout.CLAIMS + claim_id)
            if reply.found:
                time = layout.parameters(reply.headers["Content-Type"])
                names = reply.body.decode().split()
                record = Record(claim_id, int(time["s"]), int(time["t"]), int(time["x"]), names)
                if record.ends_at > self._now():
                    return record
        raise no_claim(claim_id)

    def _announce_returned(self, container: str, count: int, at: int) -> None:
        """Announce messages that are ready from an instant on."""
        if at > self._now():
            self._hints.announce_due(container, at)
        else:
            self._hints.announce_ready(container, count)

    async def _mark_held(self, container: str, one: Listed, state: State, lease: Lease) -> bool:
        """Write a lease; the message's history and index live as long as the message then does."""
        await self._keep(container, one, state, lease)
        return await self._objects.mark_message(container, one.name, state, lease)

    async def _keep(self, container: str, one: Listed, state: State, lease: Lease) -> None:
        """Let a message's history, and what finds it by its id, live as long as its new state."""
        if state.expires_at > one.state.expires_at:
            await self._histories.keep(container, one, state.expires_at, lease)
            await self._dead_letters.keep_index(container, one, state, lease)

    async def _end_attempt(
        self, container: str, one: Listed, ending: Ending, lease: Lease
    ) -> State:
        """Write the attempt that ends; answer the state that is to be written then."""
        now = self._now() if ending.outcome is Ended.LAPSED else ending.at
        state, attempt = ended(one.state, ending, now)
        await self._histories.add(container, one, attempt, state.expires_at, lease)
        await self._dead_letters.keep_index(container, one, state, lease)
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
        state = await self._end_attempt(container, message.listed, ending, lease)
        if not state.move_reason and (marks or state.claim_expires_at):
            await self._objects.mark_message(container, message.listed.name, state, lease)
        return message.with_state(state)

    def _watch_end(self, claim_id: str, names: set[str]) -> None:
        """Remember what a claim of this process holds, to remove it with its last message."""
        self._outstanding[claim_id] = names
        if len(self._outstanding) > _MAX_CLAIMS:
            self._outstanding.popitem(last=False)

    async def _end(self, container: str, claim_id: str, lease: Lease) -> None:
        """Remove the object of a claim that holds nothing; if that fails, the sweep does."""
        self._outstanding.pop(claim_id, None)
        with suppress(Unavailable):
            await self._objects.remove(container, layout.CLAIMS + claim_id, lease)

    async def _end_empty(
        self, container: str, claim_ids: Collection[str], gone: Iterable[Listed], lease: Lease
    ) -> None:
        """End those claims of this process whose last message is gone."""
        names = {listed.name for listed in gone}
        for claim_id in claim_ids:
            left = self._outstanding.get(claim_id)
            if left is not None:
                left -= names
                if not left:
                    await self._end(container, claim_id, lease)

    async def _held(self, container: str, record: Record, tail: Tail) -> list[Listed]:
        """What a claim holds by now, as the messages themselves tell; under the lock."""
        states = await together(*(self._objects.state(container, name) for name in record.names))
        now = self._now()
        return [
            listed
            for name, state in zip(record.names, states, strict=True)
            if state is not None
            and is_held(record.claim_id, listed := Listed(name, state), tail.birth, now)
        ]


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
