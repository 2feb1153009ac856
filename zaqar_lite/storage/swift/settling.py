"""Claims: read, renew and release them; settle each message by itself, in the fewest writes."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.models import NO_RETRIES, Claim, DeadLetter, QueueRef, RetryPolicy
from zaqar_lite.domain.refusals import no_claim
from zaqar_lite.domain.settlements import Act, Ending, Outcome, Settled, Settlement
from zaqar_lite.storage.swift.claiming import Claiming, Record, is_held
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together


@dataclass(slots=True)
class _Message:
    """A message of the call, and what is to become of it.

    `state` is the state that will be written: with a longer lease, or after the hand-out has ended.
    """

    found: Listed
    state: State
    acked: bool = False
    ending: Ending | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its hand-out ends with this call."""
        return self.acked or self.ending is not None

    def decide(
        self, claim_id: str, settlement: Settlement, retries: RetryPolicy, now: int
    ) -> Outcome:
        """Note what a settlement changes; answer its outcome."""
        is_mine, is_held = self.state.claim_id == claim_id, self.state.is_claimed(now)
        if not (is_mine and is_held):
            ended = Ended(self.state.ended) if self.state.ended else None
            return settlement.without_lease(is_held=is_held, is_last_claim=is_mine, ended=ended)
        match settlement.act:
            case Act.ACK:
                self.acked = True
            case Act.EXTEND:
                self.state = self.state.held_until(now, settlement.ttl_ms, settlement.grace_ms)
            case Act.DEAD if retries.dead_letter is None:
                return Outcome.NO_TARGET
            case _:
                self.ending = Ending.by(settlement, now, retries)
        return Outcome.DONE


class Settling(Claiming):
    """Read, renew, release and settle claims."""

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim and what it holds; see the seam."""
        container = self._container(queue)
        record, tail = await asyncio.gather(
            self._record(container, claim_id), self._tails.peek(container)
        )
        found = await self._fetch_all(container, record.names)
        now = self._now()
        held = [m for m in found if is_held(claim_id, m.listed, tail.birth, now)]
        if not held:
            raise no_claim(claim_id)
        views = await self._views(container, held, details=details)
        return Claim(claim_id, record.ttl_ms, now - record.started_at, views)

    async def _settle_all(
        self,
        queue: QueueRef,
        claim_id: str,
        settlement: Settlement,
        retries: RetryPolicy,
        version: int | None,
    ) -> Settled:
        container = self._container(queue)

        async def work(lease: Lease) -> Settled:
            nothing = Settled([Outcome.NOT_FOUND], 0)
            try:
                record = await self._record(container, claim_id)
            except NotFound:
                return nothing
            tail = await self._tails.load(container, lease)
            await self._connection.check(queue, version, tail)
            held = await self._held(container, record, tail)
            if settlement.act is Act.EXTEND:
                is_renewed = held and await self._renew(container, record, held, settlement, lease)
                return Settled([Outcome.DONE], 0) if is_renewed else nothing
            ending = Ending.by(settlement, self._now(), retries)
            given_back = [_Message(one, one.state, ending=ending) for one in held]
            moved = await self._finish(container, given_back, retries.dead_letter, lease)
            await self._end(container, claim_id, lease)
            return Settled([Outcome.DONE], moved) if held else nothing

        return await self._connection.locked(queue, work)

    async def _renew(
        self,
        container: str,
        record: Record,
        held: Sequence[Listed],
        settlement: Settlement,
        lease: Lease,
    ) -> bool:
        """Let a claim, and what it holds, begin anew; False where it has just ended."""
        now, ttl_ms = self._now(), settlement.ttl_ms
        renewed = Record(record.claim_id, now, ttl_ms, now + ttl_ms, record.names)
        changes = [(one, one.state.held_until(now, ttl_ms, settlement.grace_ms)) for one in held]
        with self._hints.changing(container):
            marked = await together(
                self._mark_record(container, renewed, lease),
                *(self._mark_held(container, *each, lease) for each in changes),
            )
        if marked[0]:
            self._hints.announce_due(container, now + ttl_ms)
        return bool(marked[0])

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Do to each message what its settlement says; see the seam."""
        if isinstance(settlements, Settlement):
            return await self._settle_all(queue, claim_id, settlements, retries, version)
        container = self._container(queue)

        async def work(lease: Lease) -> Settled:
            tail = await self._tails.load(container, lease)
            await self._connection.check(queue, version, tail)
            ids = [one.message_id for one in settlements]
            found = await self._find_live(container, ids, tail)
            now = self._now()
            named = {one.id: _Message(one, one.state) for one in found}
            outcomes = [
                named[one.message_id].decide(claim_id, one, retries, now)
                if one.message_id in named
                else Outcome.NOT_FOUND
                for one in settlements
            ]
            changed = [message for message in named.values() if message.has_ended]
            extended = [message for message in named.values() if not message.has_ended]
            with self._hints.changing(container):
                await self._extend(container, claim_id, extended, lease)
            moved = await self._finish(container, changed, retries.dead_letter, lease)
            await self._end_empty(container, [claim_id], [one.found for one in changed], lease)
            return Settled(outcomes, moved)

        return await self._connection.locked(queue, work)

    async def _extend(
        self, container: str, claim_id: str, messages: Sequence[_Message], lease: Lease
    ) -> None:
        """Write the changed leases, and the claim's own end where a lease now ends after it."""
        changed = [(m.found, m.state) for m in messages if m.found.state != m.state]
        if not changed:
            return
        ends_at = max(state.claim_expires_at for _, state in changed)
        with suppress(NotFound):
            record = await self._record(container, claim_id)
            if record.ends_at < ends_at:
                await self._mark_record(container, replace(record, ends_at=ends_at), lease)
        await together(*(self._mark_held(container, *each, lease) for each in changed))
        self._hints.announce_due(container, min(state.claim_expires_at for _, state in changed))

    async def _finish(
        self,
        container: str,
        messages: Sequence[_Message],
        policy: DeadLetter | None,
        lease: Lease,
    ) -> int:
        """Write what became of messages whose hand-out ended; answer how many were moved."""
        with self._hints.changing(container):
            letters = await together(*(self._write(container, m, lease) for m in messages))
            dead = [letter for letter in letters if letter is not None]
            moved = await self._dead_letters.send(container, dead, policy, lease)
        back = [m.state for m in messages if m.ending and not m.state.move_reason]
        parked = [state.claim_expires_at for state in back if state.claim_expires_at]
        self._announce_returned(container, len(back) - len(parked), 0)
        if parked:
            self._hints.announce_due(container, min(parked))
        return moved

    async def _write(self, container: str, message: _Message, lease: Lease) -> Fetched | None:
        """Delete or give back a message whose hand-out ended; answer it if it is to be moved."""
        found = message.found
        if message.acked:
            await self._dead_letters.remove(container, found, lease)
        if message.ending is None:
            return None
        message.state = await self._end_attempt(container, found, message.ending, lease)
        if message.state.move_reason:
            letter = await self._objects.fetch(container, found.name)
            return None if letter is None else letter.with_state(message.state)
        await self._objects.mark_message(container, found.name, message.state, lease)
        return None
