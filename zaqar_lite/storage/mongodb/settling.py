"""Settling: read the messages, decide, write each by a guarded update; again if others were faster.

Every message that a call changes gets the mark of the call. When the call reads the messages again,
after a lost answer or a lost race, the mark tells which of them it has changed itself.
"""

from collections.abc import Sequence
from contextlib import suppress

from pymongo.errors import PyMongoError

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import is_claim_id, is_message_id, new_claim_id
from zaqar_lite.domain.models import NO_RETRIES, Move, QueueRef, Retries
from zaqar_lite.domain.settlements import Act, Outcome, Settled, Settlement
from zaqar_lite.storage.mongodb.guarded_updates import Change
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.parts import StorePart
from zaqar_lite.storage.mongodb.queues import (
    BRIEF,
    CLAIMED,
    GONE,
    QueueState,
    key_of,
    reading,
)
from zaqar_lite.storage.mongodb.transitions import Transitions

_ROUNDS = 20


class Settling(StorePart):
    """Settle single messages of claims, or release all that a claim holds."""

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement],
        *,
        retries: Retries = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim; see the seam."""
        call = _Call(claim_id, settlements)
        letter = retries.dead_letter
        places = [queue] if letter is None or letter.target is None else [queue, letter.target]
        match = {"_id": {"$in": call.ids}, "q": {"$in": [key_of(each) for each in places]}}
        stages = reading(match, BRIEF)
        for _ in range(_ROUNDS):
            found, state = await self._queues.find_with_state(queue, stages, BY_ID, version)
            changes = call.decide(found, state, queue, retries)
            if await self._updates.write(changes) == len(changes):
                break
        else:
            raise _busy(queue)
        if call.acknowledged:
            with suppress(PyMongoError):  # readers see them no more even when this fails
                await self._updates.remove(key_of(queue), call.acknowledged, GONE)
        return call.settled

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """Give back what a claim still holds; see the seam."""
        key = key_of(queue)
        match = {"q": key, "cid": claim_id, "s": CLAIMED}
        for _ in range(_ROUNDS if is_claim_id(claim_id) else 0):
            found = await self._queues.find_with_state(queue, reading(match, BRIEF), "claim")
            if found.state is None:
                return
            transitions = Transitions(queue, found.state, NO_RETRIES)
            changes = []
            for seen in found.live:
                if transitions.is_held(seen):
                    document = dict(seen)
                    given_back = Settlement(seen["_id"], Act.RELEASE, delay_ms=delay_ms)
                    transitions.release(document, given_back)
                    changes.append(Change(key, seen, document))
            if await self._updates.write(changes) == len(changes):
                return

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue; see the seam.

        All messages of a call are moved in one transaction, or none. After a lost answer those that
        are in the target with the call's mark were moved, and those still here were not.
        """
        mark, wanted = new_claim_id(), [one for one in dict.fromkeys(ids) if is_message_id(one)]
        places = [key_of(queue), key_of(move.target)]
        match = {"_id": {"$in": wanted}, "q": {"$in": places}}
        for _ in range(_ROUNDS):
            found, state = await self._queues.find_with_state(queue, reading(match, BRIEF), BY_ID)
            seen_by_id = {seen["_id"]: seen for seen in found}
            outcomes, changes = dict.fromkeys(wanted, Outcome.NOT_FOUND), []
            transitions = None if state is None else Transitions(queue, state, NO_RETRIES)
            for message_id in wanted:
                seen = seen_by_id.get(message_id)
                if seen is None or transitions is None:
                    continue
                if seen.get("x") == mark:
                    outcomes[message_id] = Outcome.DONE
                    continue
                document = dict(seen)
                outcomes[message_id] = transitions.move(document, move)
                if outcomes[message_id] is Outcome.DONE:
                    document["x"] = mark
                    changes.append(Change(places[0], seen, document))
            if await self._updates.write(changes) == len(changes):
                return [outcomes.pop(one, Outcome.NOT_FOUND) for one in ids]
        raise _busy(queue)


class _Call:
    """One call of `settle`: what it is to do, and what it has decided so far."""

    def __init__(self, claim_id: str, settlements: Sequence[Settlement]) -> None:
        self._claim_id = claim_id
        self._mark = new_claim_id()
        self._settlements = settlements
        self._outcomes: dict[int, Outcome] = {}
        self._places: dict[str, list[int]] = {}
        for place, settlement in enumerate(settlements):
            if is_message_id(settlement.message_id):
                self._places.setdefault(settlement.message_id, []).append(place)
        self._planned: dict[str, Change] = {}

    @property
    def ids(self) -> list[str]:
        """The messages that it names."""
        return list(self._places)

    @property
    def acknowledged(self) -> list[str]:
        """The messages that it has acknowledged."""
        return [key for key, plan in self._planned.items() if plan.document["s"] == GONE]

    @property
    def settled(self) -> Settled:
        """The answer."""
        places = range(len(self._settlements))
        moved = sum(plan.target != plan.key for plan in self._planned.values())
        return Settled([self._outcomes.get(n, Outcome.NOT_FOUND) for n in places], moved)

    def decide(
        self,
        found: Sequence[Document],
        state: QueueState | None,
        ref: QueueRef,
        retries: Retries,
    ) -> list[Change]:
        """Decide on the messages that no earlier round of this call has changed."""
        done = {document["_id"] for document in found if document.get("x") == self._mark}
        self._planned = {key: plan for key, plan in self._planned.items() if key in done}
        self._outcomes = {n: self._outcomes[n] for key in done for n in self._places[key]}
        if state is None:
            return []
        transitions, changes = Transitions(ref, state, retries), []
        for seen in found:
            if seen["_id"] in done:
                continue
            document = dict(seen)
            for place in self._places[seen["_id"]]:
                self._outcomes[place] = transitions.settle(
                    document, self._claim_id, self._settlements[place]
                )
            if document != seen:
                document["x"] = self._mark
                changes.append(Change(state.key, seen, document))
        self._planned |= {change.seen["_id"]: change for change in changes}
        return changes


def _busy(ref: QueueRef) -> Unavailable:
    return Unavailable(
        f"Others settle the same messages of the queue {ref.name!r} again and again."
    )
