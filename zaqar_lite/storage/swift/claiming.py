"""Claims and pops: under the queue's lock, from one listing, each message decided by its object."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from zaqar_lite.domain.errors import NotFound, Unavailable, Unsupported
from zaqar_lite.domain.ids import is_claim_id, new_claim_id
from zaqar_lite.domain.models import Claim, Claimed, DelayMode, QueueRef, Take
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together
from zaqar_lite.storage.swift.reading import SPARE, Reading

_MOST_EXAMINED = 10_000
"""Entries that one claim examines; the next one goes on where it ended."""
_MAX_MOVED = 20
"""Dead letters of one claim, or a few more: the lock is not held for longer."""
_TRUST_MS = 10_000
"""How long it is believed of a long stretch that nothing in it is ready: others may release."""
_MAX_CLAIMS = 10_000
"""Claims of this process whose end it will see."""
_END = 1 << 62


@dataclass(slots=True)
class Record:
    """A claim's own object: its time in the content type, the names of what it holds inside."""

    claim_id: str
    started_at: int
    ttl_ms: int
    names: Sequence[str]

    @property
    def expires_at(self) -> int:
        """When the claim lapses."""
        return self.started_at + self.ttl_ms

    @property
    def content_type(self) -> str:
        """Its time."""
        return layout.content_type("claim", s=self.started_at, t=self.ttl_ms, x=self.expires_at)


@dataclass(slots=True)
class Chosen:
    """What a claim found: messages to hand out, letters to move, and whether there may be more."""

    messages: list[Fetched] = field(default_factory=list)
    letters: list[Fetched] = field(default_factory=list)
    more: bool = False


class Claiming(Reading):
    """Hand out messages under claims, or for good."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._outstanding: OrderedDict[str, set[str]] = OrderedDict()

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""

        async def work(lease: Lease) -> Claimed:
            chosen = await self._choose(queue, take, lease)
            held = Claimed(None)
            if chosen.messages:
                held = await self._hold(queue, take, chosen.messages, lease)
            return await self._with_letters(queue, take, chosen, held, lease)

        return await self._backend.locked(queue, work, exclusive=True)

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""

        async def work(lease: Lease) -> Claimed:
            chosen = await self._choose(queue, take, lease)
            container = self._container(queue)
            gone = await _certain(
                chosen.messages,
                (self._pop_one(container, m.listed, lease) for m in chosen.messages),
            )
            self._tails.queue(container).room = None
            popped = Claimed(None, [message.view(self._now()) for message in gone])
            return await self._with_letters(queue, take, chosen, popped, lease)

        return await self._backend.locked(queue, work)

    async def _with_letters(
        self, queue: QueueRef, take: Take, chosen: Chosen, claimed: Claimed, lease: Lease
    ) -> Claimed:
        """Move the exhausted messages that were met on the way, and tell how many.

        What was handed out by now is handed out: where a move fails, the next claim goes on.
        """
        claimed.more = chosen.more
        letter = take.retries.dead_letter
        if chosen.letters and letter is not None and letter.target is not None:
            source, target = self._container(queue), self._container(letter.target)
            try:
                claimed.moved = await self._dead_letters.move(
                    source, target, chosen.letters, letter.ttl_ms or 0, lease
                )
            except Unavailable:
                if not claimed.messages:
                    raise
        return claimed

    async def _choose(self, queue: QueueRef, take: Take, lease: Lease) -> Chosen:
        """Choose ready messages, in order, and the exhausted ones met on the way."""
        letter = take.retries.dead_letter
        if letter is not None and letter.target is None:
            raise Unsupported("The Swift store keeps no failed messages; the embedded one does.")
        container = self._container(queue)
        tail = await self._tails.load(container, lease)
        known = self._tails.queue(container)
        known.tail = tail = await self._backend.check(queue, take.version, tail)
        chosen, start, until = Chosen(), tail.birth, _END
        if known.nothing_ready is not None:
            mode, position, until = known.nothing_ready
            if mode is take.delay_mode and until > self._now():
                start = position
            else:
                known.nothing_ready, until = None, _END
        examined = 0
        async for page in self._objects.messages(container, start=start, first=take.limit + SPARE):
            listed = await self._with_moves_finished(container, page, lease)
            until = min(until, await self._choose_of(container, listed, take, chosen))
            examined += len(page)
            if len(chosen.messages) >= take.limit:
                break
            chosen.more = examined >= _MOST_EXAMINED or len(chosen.letters) >= _MAX_MOVED
            if chosen.more:
                if not chosen.messages and not chosen.letters:
                    until = min(until, self._now() + _TRUST_MS) if self._backend.shared else until
                    known.nothing_ready = (take.delay_mode, page[-1].position + 1, until)
                break
        return chosen

    async def _choose_of(
        self, container: str, listed: Sequence[Listed], take: Take, chosen: Chosen
    ) -> int:
        """Choose of one page; answer when a message that is not ready may be so at the earliest."""
        now = self._now()
        ready = [one.name for one in listed if _may_take(take, one.state, now)]
        delayed = take.delay_mode is not DelayMode.EXPOSE
        waiting = [
            one.state.ready_at(delayed=delayed)
            for one in listed
            if one.state.expires_at > now and not _may_take(take, one.state, now)
        ]
        letter = take.retries.dead_letter
        start = 0
        while start < len(ready):
            wanted = take.limit - len(chosen.messages)
            if wanted <= 0 or len(chosen.letters) >= _MAX_MOVED:
                break
            found = await self._fetch_all(container, ready[start : start + wanted])
            start += wanted
            for message in found:
                if not _may_take(take, message.state, self._now()):
                    waiting.append(now + 1_000)  # the listing is late
                elif letter is not None and message.state.claim_count >= letter.max_claims:
                    chosen.letters.append(message)
                else:
                    chosen.messages.append(message)
        return min(waiting, default=_END)

    async def _with_moves_finished(
        self, container: str, page: Sequence[Listed], lease: Lease
    ) -> Sequence[Listed]:
        """The same messages when the moves that a crash cut short, among them, are finished."""
        cut = [one for one in page if one.is_cut]
        if not cut:
            return page
        await self._dead_letters.heal(container, cut, lease)
        states = await together(*(self._objects.state(container, one.name) for one in cut))
        healed = {one.name: state for one, state in zip(cut, states, strict=True)}
        now = [Listed(one.name, healed.get(one.name, one.state) or NO_STATE) for one in page]
        return [one for one in now if one.state is not NO_STATE]

    async def _hold(
        self, queue: QueueRef, take: Take, taken: Sequence[Fetched], lease: Lease
    ) -> Claimed:
        """Mark what was taken and write the claim, at once."""
        container = self._container(queue)
        now = self._now()
        claim_id = new_claim_id()
        held = [
            message.with_state(
                replace(
                    message.state.held_until(now, take.ttl_ms, take.grace_ms),
                    claim_id=claim_id,
                    claim_count=message.state.claim_count + 1,
                    claim_client=take.client_id,
                    delay_expires_at=_delay_of(message.state, take.delay_mode, now),
                )
            )
            for message in taken
        ]
        record = Record(claim_id, now, take.ttl_ms, [message.listed.name for message in held])
        recorded, marked = await asyncio.gather(
            self._put_record(container, record, lease),
            _certain(held, (self._mark(container, m.listed, lease) for m in held)),
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
        self._outstanding[claim_id] = {message.listed.name for message in marked}
        if len(self._outstanding) > _MAX_CLAIMS:
            self._outstanding.popitem(last=False)
        return Claimed(claim_id, [message.view(now) for message in marked])

    async def _mark(self, container: str, listed: Listed, lease: Lease) -> bool:
        """Let a claim hold a message; False when it is gone, or the claim does not hold it.

        A mark that failed can't land any more, so the object tells what became of it.
        """
        try:
            return await self._objects.mark_message(container, listed.name, listed.state, lease)
        except Unavailable:
            state = await self._objects.state(container, listed.name)
            return state is not None and state.claim_id == listed.state.claim_id

    async def _unmark(self, container: str, message: Fetched, claim_id: str, lease: Lease) -> None:
        """Undo the mark of a claim that could not be made."""
        state = await self._objects.state(container, message.listed.name)
        if state is not None and state.claim_id == claim_id:
            await self._objects.mark_message(container, message.listed.name, message.state, lease)

    async def _pop_one(self, container: str, listed: Listed, lease: Lease) -> bool:
        """Delete a message; False when it is still there, and so is nobody's."""
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
            ends=record.expires_at,
        )

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
                record = Record(claim_id, int(time["s"]), int(time["t"]), names)
                if record.expires_at > self._now():
                    return record
        raise _no_claim(claim_id)

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim and what it holds; see the seam."""
        container = self._container(queue)
        record, tail = await asyncio.gather(
            self._record(container, claim_id), self._tails.look(container)
        )
        found = await self._fetch_all(container, record.names)
        now = self._now()
        held = [m.view(now) for m in found if is_held(claim_id, m.listed, tail.birth, now)]
        if not held:
            raise _no_claim(claim_id)
        return Claim(claim_id, record.ttl_ms, now - record.started_at, held)

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        container = self._container(queue)

        async def work(lease: Lease) -> None:
            record = await self._record(container, claim_id)
            held = await self._held(container, record, lease)
            now = self._now()
            renewed = Record(claim_id, now, ttl_ms, record.names)
            if not held:
                raise _no_claim(claim_id)
            marked = await together(
                self._objects.mark(
                    container,
                    layout.CLAIMS + claim_id,
                    renewed.content_type,
                    lease,
                    ends=renewed.expires_at,
                ),
                *(
                    self._objects.mark_message(
                        container, one.name, one.state.held_until(now, ttl_ms, grace_ms), lease
                    )
                    for one in held
                ),
            )
            if not marked[0]:
                raise _no_claim(claim_id)

        await self._backend.locked(queue, work)

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """End a claim; see the seam."""
        container = self._container(queue)

        async def work(lease: Lease) -> None:
            try:
                record = await self._record(container, claim_id)
            except NotFound:
                return
            held = await self._held(container, record, lease)
            self._tails.queue(container).something_may_be_ready()
            await together(
                *(
                    self._objects.mark_message(
                        container, one.name, replace(one.state, claim_expires_at=0), lease
                    )
                    for one in held
                )
            )
            await self._end(container, claim_id, lease)

        if is_claim_id(claim_id):
            await self._backend.locked(queue, work)

    async def _end(self, container: str, claim_id: str, lease: Lease) -> None:
        """Remove the record of a claim that holds nothing; what is left of it is the sweep's."""
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

    async def _held(self, container: str, record: Record, lease: Lease) -> list[Listed]:
        """What a claim holds by now, as the messages themselves tell; under the lock."""
        tail = await self._tails.load(container, lease)
        states = await together(*(self._objects.state(container, name) for name in record.names))
        now = self._now()
        return [
            listed
            for name, state in zip(record.names, states, strict=True)
            if state is not None
            and is_held(record.claim_id, listed := Listed(name, state), tail.birth, now)
        ]


NO_STATE = State(0, 0, "")


def _may_take(take: Take, state: State, now: int) -> bool:
    """Whether a message in this state is ready for a claim.

    A message of a normal queue has no `d`, so there is nothing to compare.
    """
    if not state.is_ready(now):
        return False
    return take.delay_mode is DelayMode.EXPOSE or not state.is_delayed(now)


def is_held(claim_id: str, listed: Listed, birth: int, now: int) -> bool:
    """Whether a claim holds a message."""
    state = listed.state
    mine = state.claim_id == claim_id and state.is_claimed(now)
    return mine and state.is_live(now) and listed.position >= birth


def _delay_of(state: State, mode: DelayMode, now: int) -> int:
    """A message that was taken before its delay was over is exposed for good."""
    return min(state.delay_expires_at, now) if mode is DelayMode.EXPOSE else state.delay_expires_at


def _no_claim(claim_id: str) -> NotFound:
    return NotFound(f"Claim {claim_id} does not exist or has expired.")


async def _certain(messages: Sequence[Fetched], writes: Iterable[Awaitable[bool]]) -> list[Fetched]:
    """The messages whose write is certain.

    Raises:
        Unavailable: none is, and of some nobody can tell.
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
