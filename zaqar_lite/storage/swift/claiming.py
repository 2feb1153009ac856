"""Claims and pops: under the queue's lock, from one listing, each message decided by its object."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from zaqar_lite.domain.errors import NotFound, Unavailable, Unsupported
from zaqar_lite.domain.ids import is_claim_id, new_claim_id
from zaqar_lite.domain.models import Claim, Claimed, DeadLetter, DelayMode, QueueRef
from zaqar_lite.storage.swift import layout
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.dead_letters import DeadLetters
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import Entry, together

_SPARE = 20
"""How many entries beyond the limit the first page of a listing has, for those passed over."""
_MAX_MOVED = 100
"""Dead letters of one claim: the lock is not held for longer."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a claim or a pop asks for."""

    queue: QueueRef
    limit: int
    delay_mode: DelayMode
    dead_letter: DeadLetter | None
    version: int | None

    def may_take(self, state: State, now: int) -> bool:
        """Whether a message in this state is ready for it.

        A message of a normal queue has no `d`, so there is nothing to compare.
        """
        if not state.is_ready(now):
            return False
        return self.delay_mode is DelayMode.EXPOSE or not state.is_delayed(now)


class Terms(NamedTuple):
    """Who claims, and for how long (milliseconds)."""

    client_id: str
    ttl_ms: int
    grace_ms: int


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


class Claiming:
    """Hand out messages under claims, or for good."""

    def __init__(self, backend: Backend, dead_letters: DeadLetters) -> None:
        self._backend = backend
        self._objects = backend.objects
        self._dead_letters = dead_letters

    async def claim(self, wish: Wish, terms: Terms) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""

        async def work(lease: Lease) -> Claimed:
            taken, moved = await self._take(wish, lease)
            held = await self._hold(wish, terms, taken, lease) if taken else Claimed(None)
            held.moved = moved
            return held

        return await self._backend.locked(wish.queue, work)

    async def pop(self, wish: Wish) -> Claimed:
        """Remove and hand out ready messages; see the seam.

        One whose deletion is in doubt is left out: it must not go to two callers.
        """

        async def work(lease: Lease) -> Claimed:
            taken, moved = await self._take(wish, lease)
            container = self._backend.containers.queue(wish.queue)
            outcomes = await asyncio.gather(
                *(self._dead_letters.remove(container, m.listed, lease) for m in taken),
                return_exceptions=True,
            )
            gone = _successes(taken, outcomes)
            now = self._backend.clock.now_ms()
            return Claimed(None, [message.view(now) for message in gone], moved)

        return await self._backend.locked(wish.queue, work)

    async def _take(self, wish: Wish, lease: Lease) -> tuple[list[Fetched], int]:
        """Choose ready messages, in order, and move the exhausted ones met on the way."""
        if wish.dead_letter is not None and wish.dead_letter.target is None:
            raise Unsupported("The Swift store keeps no failed messages; the embedded one does.")
        container = self._backend.containers.queue(wish.queue)
        await together(
            self._backend.records.check(wish.queue, wish.version),
            self._backend.tails.settle(container, lease),
        )
        taken: list[Fetched] = []
        moved = 0
        pages = self._objects.pages(
            container,
            after=layout.MESSAGES,
            before=layout.AFTER_MESSAGES,
            first=wish.limit + _SPARE,
        )
        async for entries in pages:
            ready = self._ready(wish, await self._with_moves_finished(container, entries, lease))
            moved += await self._choose(wish, container, ready, taken, lease)
            if len(taken) >= wish.limit or moved >= _MAX_MOVED:
                break
        return taken, moved

    def _ready(self, wish: Wish, entries: Sequence[Entry]) -> list[Listed]:
        now = self._backend.clock.now_ms()
        listed = (Listed(entry.name, State.parse(entry.content_type)) for entry in entries)
        return [one for one in listed if wish.may_take(one.state, now)]

    async def _with_moves_finished(
        self, container: str, entries: Sequence[Entry], lease: Lease
    ) -> Sequence[Entry]:
        """The same entries when the moves that a crash cut short, among them, are finished."""
        cut = [e for e in entries if ";to=" in e.content_type or ";from=" in e.content_type]
        if not cut:
            return entries
        listed = [Listed(entry.name, State.parse(entry.content_type)) for entry in cut]
        await self._dead_letters.heal(container, listed, lease)
        replies = await together(*(self._objects.head(container, entry.name) for entry in cut))
        now_there = {
            entry.name: reply.headers["Content-Type"]
            for entry, reply in zip(cut, replies, strict=True)
            if reply.found
        }
        return [
            Entry(entry.name, now_there.get(entry.name, entry.content_type))
            for entry in entries
            if entry.name in now_there or entry not in cut
        ]

    async def _choose(
        self,
        wish: Wish,
        container: str,
        waiting: Sequence[Listed],
        taken: list[Fetched],
        lease: Lease,
    ) -> int:
        """Read candidates until the limit is reached; move the exhausted ones, and count them."""
        moved = start = 0
        while start < len(waiting) and len(taken) < wish.limit and moved < _MAX_MOVED:
            end = start + wish.limit - len(taken)
            found = await together(
                *(self._objects.fetch(container, one.name) for one in waiting[start:end])
            )
            start = end
            now = self._backend.clock.now_ms()
            ready = [m for m in found if m is not None and wish.may_take(m.state, now)]
            letter = wish.dead_letter
            if letter is None or letter.target is None:
                taken += ready
                continue
            exhausted = [m for m in ready if m.state.claim_count >= letter.max_claims]
            taken += [m for m in ready if m.state.claim_count < letter.max_claims]
            target = self._backend.containers.queue(letter.target)
            moved += await self._dead_letters.move(
                container, target, exhausted, letter.ttl_ms or 0, lease
            )
        return moved

    async def _hold(
        self, wish: Wish, terms: Terms, taken: Sequence[Fetched], lease: Lease
    ) -> Claimed:
        """Mark what was taken and write the claim, at once.

        A message whose mark is in doubt is not handed out: if it is held, then until it lapses.
        """
        container = self._backend.containers.queue(wish.queue)
        now = self._backend.clock.now_ms()
        claim_id = new_claim_id()
        held = [
            message.with_state(
                replace(
                    message.state.held_until(now, terms.ttl_ms, terms.grace_ms),
                    claim_id=claim_id,
                    claim_count=message.state.claim_count + 1,
                    claim_client=terms.client_id,
                    delay_expires_at=_delay_of(message.state, wish.delay_mode, now),
                )
            )
            for message in taken
        ]
        record = Record(claim_id, now, terms.ttl_ms, [message.listed.name for message in held])
        recorded, *outcomes = await asyncio.gather(
            self._put_record(container, record, lease),
            *(self._objects.mark_message(container, m.listed.name, m.state, lease) for m in held),
            return_exceptions=True,
        )
        if isinstance(recorded, BaseException):
            await self._give_back(container, taken, outcomes, lease)
            raise recorded
        good = _successes(held, outcomes)
        if len(good) < len(held):
            record.names = [message.listed.name for message in good]
            await self._put_record(container, record, lease)
        return Claimed(claim_id if good else None, [m.view(now) for m in good])

    async def _give_back(
        self,
        container: str,
        taken: Sequence[Fetched],
        outcomes: Sequence[bool | BaseException],
        lease: Lease,
    ) -> None:
        """Undo the marks of a claim that could not be recorded, as far as that is possible."""
        marked = [m for m, done in zip(taken, outcomes, strict=True) if done is True]
        await asyncio.gather(
            *(self._objects.mark_message(container, m.listed.name, m.state, lease) for m in marked),
            return_exceptions=True,
        )

    async def _put_record(self, container: str, record: Record, lease: Lease) -> bool:
        await self._objects.put(
            container,
            layout.CLAIMS + record.claim_id,
            record.content_type,
            " ".join(record.names).encode(),
            lease,
            ends=record.expires_at,
        )
        return True

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
                if record.expires_at > self._backend.clock.now_ms():
                    return record
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")

    async def get_claim(self, queue: QueueRef, claim_id: str) -> Claim:
        """Read a live claim and what it holds; see the seam."""
        container = self._backend.containers.queue(queue)
        record = await self._record(container, claim_id)
        found = await together(*(self._objects.fetch(container, name) for name in record.names))
        now = self._backend.clock.now_ms()
        held = [m.view(now) for m in found if m is not None and _holds(claim_id, m.state, now)]
        return Claim(claim_id, record.ttl_ms, now - record.started_at, held)

    async def renew(self, queue: QueueRef, claim_id: str, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim live on; see the seam."""
        container = self._backend.containers.queue(queue)

        async def work(lease: Lease) -> None:
            record = await self._record(container, claim_id)
            held = await self._held(container, record)
            now = self._backend.clock.now_ms()
            renewed = Record(claim_id, now, ttl_ms, record.names)
            marks = await together(
                self._objects.mark(
                    container,
                    layout.CLAIMS + claim_id,
                    renewed.content_type,
                    lease,
                    ends=renewed.expires_at,
                ),
                *(
                    self._objects.mark_message(
                        container,
                        one.name,
                        one.state.held_until(now, ttl_ms, grace_ms),
                        lease,
                    )
                    for one in held
                ),
            )
            if not marks[0]:
                raise NotFound(f"Claim {claim_id} does not exist or has expired.")

        await self._backend.locked(queue, work)

    async def release(self, queue: QueueRef, claim_id: str) -> None:
        """End a claim; see the seam."""
        container = self._backend.containers.queue(queue)

        async def work(lease: Lease) -> None:
            try:
                record = await self._record(container, claim_id)
            except NotFound:
                return
            held = await self._held(container, record)
            await together(
                *(
                    self._objects.mark_message(
                        container, one.name, replace(one.state, claim_expires_at=0), lease
                    )
                    for one in held
                )
            )
            await self._objects.remove(container, layout.CLAIMS + claim_id, lease)

        if is_claim_id(claim_id):
            await self._backend.locked(queue, work)

    async def _held(self, container: str, record: Record) -> list[Listed]:
        """What a claim holds by now, as the messages themselves tell."""
        states = await together(*(self._objects.state(container, name) for name in record.names))
        now = self._backend.clock.now_ms()
        return [
            Listed(name, state)
            for name, state in zip(record.names, states, strict=True)
            if state is not None and _holds(record.claim_id, state, now)
        ]


def _holds(claim_id: str, state: State, now: int) -> bool:
    return state.is_live(now) and state.is_claimed(now) and state.claim_id == claim_id


def _delay_of(state: State, mode: DelayMode, now: int) -> int:
    """A message that was taken before its delay was over is exposed for good."""
    return min(state.delay_expires_at, now) if mode is DelayMode.EXPOSE else state.delay_expires_at


def _successes(
    messages: Sequence[Fetched], outcomes: Sequence[object | BaseException]
) -> list[Fetched]:
    """The messages whose write is certain: neither gone before it, nor in doubt.

    Raises:
        Unavailable: of those that were there none is certain.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        if not isinstance(failure, Unavailable):
            raise failure
    good = [m for m, done in zip(messages, outcomes, strict=True) if done is None or done is True]
    if failures and not good:
        raise failures[0]
    return good
