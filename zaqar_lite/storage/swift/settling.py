"""Settling: each message of a claim by itself, under the queue's lock, in the fewest writes.

All settlements that a call has for one message become one write of its state: nothing can happen
between two settlements of one call.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.models import NO_RETRIES, QueueRef, Retries
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.storage.swift.ending import Ending
from zaqar_lite.storage.swift.holding import Holding
from zaqar_lite.storage.swift.layout import Fetched, Listed, State
from zaqar_lite.storage.swift.locks import Lease
from zaqar_lite.storage.swift.objects import together

_NO_STATE = State(0, 0, "")
_RELEASED = (Ended.RELEASED.value, Ended.FAILED.value)


@dataclass(slots=True)
class _Message:
    """A message of the call, what is to become of it, and its outcomes in their order.

    `state` is the state that will be written: with a longer lease, or after the hand-out has ended.
    """

    found: Listed | None
    state: State
    acked: bool = False
    ending: Ending | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def decide(self, claim_id: str, settlement: Settlement, retries: Retries, now: int) -> Outcome:
        """Note what a settlement changes; answer its outcome."""
        if self.found is None or self.acked or (self.ending and self.ending.outcome is Ended.DEAD):
            return Outcome.NOT_FOUND
        mine, held = self.state.claim_id == claim_id, self.state.is_claimed(now)
        if held and not mine:
            return Outcome.HELD
        if self.ending or not held:
            ended = self.ending.outcome.value if self.ending else self.state.ended
            again = mine and ended in _RELEASED and settlement.act is Act.RELEASE
            return Outcome.DONE if again else Outcome.LAPSED
        match settlement.act:
            case Act.ACK:
                self.acked = True
            case Act.EXTEND:
                self.state = self.state.held_until(now, settlement.ttl_ms, settlement.grace_ms)
            case Act.DEAD:
                if retries.dead_letter is None:
                    return Outcome.NO_TARGET
                self.ending = Ending(
                    Ended.DEAD, now, retries, 0, settlement.reason, settlement.detail
                )
            case Act.RELEASE:
                how = Ended.FAILED if settlement.failed else Ended.RELEASED
                self.ending = Ending(
                    how, now, retries, settlement.delay_ms, settlement.reason, settlement.detail
                )
        return Outcome.DONE


class Settling(Holding):
    """Settle messages of a claim."""

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Do to each message what its settlement says; see the seam."""
        container = self._container(queue)

        async def work(lease: Lease) -> Settled:
            tail = await self._tails.load(container, lease)
            await self._backend.check(queue, version, tail)
            ids = dict.fromkeys(one.message_id for one in settlements)
            found = {one.id: one for one in await self._find_live(container, ids, tail)}
            now = self._now()
            named = {
                key: _Message(one, one.state if one else _NO_STATE)
                for key, one in ((key, found.get(key)) for key in ids)
            }
            for settlement in settlements:
                message = named[settlement.message_id]
                message.outcomes.append(message.decide(claim_id, settlement, retries, now))
            changed = [m for m in named.values() if m.found and (m.acked or m.ending)]
            extended = [m for m in named.values() if m.found and m not in changed]
            with self._hints.changing(container):
                await self._extend(container, claim_id, extended, lease)
                letters = await together(*(self._write(container, m, lease) for m in changed))
                dead = [letter for letter in letters if letter is not None]
                moved = await self._dead_letters.send(container, dead, retries.dead_letter, lease)
            gone = [message.found for message in changed if message.found]
            await self._end_empty(container, [claim_id], gone, lease)
            self._announce_settled(container, changed)
            answers = {key: iter(message.outcomes) for key, message in named.items()}
            return Settled(
                [next(answers[settlement.message_id]) for settlement in settlements], moved
            )

        return await self._backend.locked(queue, work)

    async def _extend(
        self, container: str, claim_id: str, messages: Sequence[_Message], lease: Lease
    ) -> None:
        """Write the changed leases, and the claim's own end where a lease now ends after it."""
        changed = [(m.found, m.state) for m in messages if m.found and m.found.state != m.state]
        if not changed:
            return
        ends_at = max(state.claim_expires_at for _, state in changed)
        with suppress(NotFound):
            record = await self._record(container, claim_id)
            if record.ends_at < ends_at:
                await self._mark_record(container, replace(record, ends_at=ends_at), lease)
        await together(*(self._mark_held(container, *each, lease) for each in changed))
        self._hints.announce_due(container, min(state.claim_expires_at for _, state in changed))

    async def _write(self, container: str, message: _Message, lease: Lease) -> Fetched | None:
        """Delete or give back a message whose hand-out ended; answer it if it is to be moved."""
        found = message.found
        if found is None or message.ending is None:
            if found is not None:
                await self._dead_letters.remove(container, found, lease)
            return None
        held = Listed(found.name, message.state)
        message.state = await self._end_attempt(container, held, message.ending, lease)
        await self._dead_letters.keep_index(container, found, message.state, lease)
        if message.state.move_reason:
            letter = await self._objects.fetch(container, found.name)
            return None if letter is None else letter.with_state(message.state)
        await self._objects.mark_message(container, found.name, message.state, lease)
        return None

    def _announce_settled(self, container: str, messages: Sequence[_Message]) -> None:
        back = [m.state for m in messages if m.ending and not m.state.move_reason]
        parked = [state.claim_expires_at for state in back if state.claim_expires_at]
        self._announce_returned(container, len(back) - len(parked), 0)
        if parked:
            self._hints.announce_due(container, min(parked))
