"""Changing messages by one path: read them, decide, and store what is still as it was read.

Every message that a call changes gets the mark of the call. When the call reads the messages again,
after a lost answer or a lost race, the mark tells which of them it has changed itself. A message
that it was to delete and that is not found any more is deleted.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

import bson
from bson import Int64
from pymongo import DeleteMany, UpdateMany
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError
from pymongo.results import BulkWriteResult

from zaqar_lite.domain.errors import Unavailable, ZaqarLiteError
from zaqar_lite.domain.ids import is_claim_id, is_message_id, new_claim_id
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claim,
    Edit,
    Message,
    Move,
    QueueRef,
    Refusal,
    RefusalReason,
    RetryPolicy,
)
from zaqar_lite.domain.refusals import delete_refusal, no_claim, no_message
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Session
from zaqar_lite.storage.mongodb.documents import NO_ATTEMPTS, to_message
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.listing import Listing
from zaqar_lite.storage.mongodb.queues import (
    BRIEF,
    FoundMessages,
    ids_of,
    key_of,
    queue_of,
    reading,
)
from zaqar_lite.storage.mongodb.transactions import RetryBudget, repeated
from zaqar_lite.storage.mongodb.transitions import Transitions

T = TypeVar("T")
_ROUNDS = 20
GUARDED = ("s", "k", "n", "cid", "w", "e")
"""Every change of a message's state or deadlines changes one of these."""


class Change(NamedTuple):
    """A message as it was read in a queue, and as it is to be.

    A dead letter's is in another queue; one that is GONE is deleted.
    """

    key: str
    seen: Document
    document: Document

    @property
    def target(self) -> str:
        """The key of the queue where it is to be."""
        key: str = self.document.get("q", self.key)
        return key

    @property
    def guard(self) -> Document:
        """The filter that finds the message if nobody has changed it since."""
        return {"_id": self.seen["_id"], **{name: self.seen.get(name) for name in GUARDED}}

    @property
    def update(self) -> Document:
        """The update; empty where the message is to be deleted."""
        seen, document = self.seen, self.document
        if document["s"] == states.GONE:
            return {}
        update: Document = {
            "$set": {name: v for name, v in document.items() if seen.get(name) != v},
            "$unset": {name: True for name in seen if name not in document},
        }
        return {operator: fields for operator, fields in update.items() if fields}


def statements(changes: Sequence[Change]) -> list[UpdateMany | DeleteMany]:
    """The guarded writes: one statement for all messages of the queue that change alike."""
    alike: dict[bytes, list[Change]] = {}
    for change in changes:
        alike.setdefault(bson.encode(change.update), []).append(change)
    found: list[UpdateMany | DeleteMany] = []
    for some in alike.values():
        guards = [change.guard for change in some]
        match = {"_id": {"$in": ids_of(guards)}, "q": some[0].key, "$or": guards}
        update = some[0].update
        found.append(
            UpdateMany(match, update, hint=BY_ID) if update else DeleteMany(match, hint=BY_ID)
        )
    return found


class _Stale(Exception):
    """A message is not as it was read any more."""


class Changed(NamedTuple, Generic[T]):
    """What a call has decided on each message it found, and the messages it has changed."""

    answers: dict[str, T]
    documents: Sequence[Document]
    lost: PyMongoError | None
    """The error of an earlier try, which may have changed messages that were not found since."""


class Changing(Listing):
    """Read, renew and release claims; settle, move, edit and delete messages."""

    async def settle(
        self,
        queue: QueueRef,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Settle messages of a claim; see the seam."""
        if isinstance(settlements, Settlement):
            every, named = settlements, dict[str, Settlement]()
            match, hint = _held(queue, claim_id), "claim"
        else:
            every, named = None, {one.message_id: one for one in settlements}
            letter = retries.dead_letter
            match, hint = _named(named, queue, None if letter is None else letter.target), BY_ID

        def settle_one(transitions: Transitions, document: Document) -> Outcome:
            if every is None:
                return transitions.settle(document, claim_id, named[document["_id"]])
            return transitions.settle(document, claim_id, every, renews=True)

        answers, changed, _ = await self._change(
            queue, match, settle_one, hint=hint, retries=retries, version=version
        )
        outcomes = [answers.get(message_id, Outcome.NOT_FOUND) for message_id in named]
        if every is not None:
            is_done = Outcome.DONE in answers.values()
            outcomes = [Outcome.DONE if is_done else Outcome.NOT_FOUND]
        return Settled(outcomes, sum(one["q"] != key_of(queue) for one in changed))

    async def move(self, queue: QueueRef, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move messages to another queue, all in one transaction; see the seam."""
        match = _named(ids, queue, move.target)
        outcomes, _, _ = await self._change(
            queue, match, lambda transitions, document: transitions.move(document, move)
        )
        return [outcomes.get(one, Outcome.NOT_FOUND) for one in ids]

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message; see the seam.

        When an answer was lost and others have changed the message since, nobody can tell whether
        it was edited, and the answer is Unavailable.
        """

        def edit_one(transitions: Transitions, document: Document) -> Message | None:
            if not transitions.is_live(document):
                return None
            transitions.edit(document, edit)
            return to_message(document, transitions.state.now)

        answers, _, lost = await self._change(
            queue,
            _named([edit.message_id], queue),
            edit_one,
            version=edit.version,
            projection=NO_ATTEMPTS,
        )
        message = answers.get(edit.message_id)
        if message is None:
            raise lost or no_message(edit.message_id)
        return message

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim: the messages that it holds, which is all there is of it."""
        found = FoundMessages([], None)
        if is_claim_id(claim_id):
            stages = reading(_held(queue, claim_id), {"l": 0} if details else NO_ATTEMPTS)
            found = await self._queues.find_with_state(queue, stages, "claim")
        state = found.state
        held = [] if state is None else [each for each in found.live if state.is_held(each)]
        if state is None or not held:
            raise no_claim(claim_id)
        first = held[0]
        return Claim(
            claim_id,
            int(first["ct"]),
            max(0, state.now - int(first["cs"])),
            [to_message(document, state.now) for document in sorted(held, key=lambda d: d["k"])],
        )

    async def _change(
        self,
        queue: QueueRef,
        match: Document,
        decide: Callable[[Transitions, Document], T],
        *,
        hint: str = BY_ID,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
        projection: Document = BRIEF,
        refuses: Callable[[Collection[T]], bool] = lambda _: False,
    ) -> Changed[T]:
        """Let `decide` change the documents that match, and store those that it has changed.

        Where one of them moves to another queue, all are stored in one transaction, or none. Where
        the answers are such that the call `refuses`, nothing is stored. What may be stored in part
        is finished with the policy that it began with, whatever the record's version is by then.
        """
        mark, budget = new_claim_id(), RetryBudget()
        answers: dict[str, T] = {}
        doomed: set[str] = set()
        lost: PyMongoError | None = None
        stages = reading(match, projection)
        # In the order in which they were named: what moves gets its positions in that order.
        places = {one: place for place, one in enumerate(match.get("_id", {}).get("$in", ()))}
        for _ in range(_ROUNDS):
            found, state = await self._queues.find_with_state(queue, stages, hint, version)
            if state is None:
                return Changed({}, (), lost)
            transitions, changes = Transitions(queue, state, retries), []
            present = set(ids_of(found))
            doomed -= present
            answers = {one: answers[one] for one in answers if one in present | doomed}
            changed = [seen for seen in found if seen.get("x") == mark]
            for seen in sorted(found, key=lambda document: places.get(document["_id"], 0)):
                if seen in changed:
                    continue
                document = dict(seen)
                try:
                    answers[seen["_id"]] = decide(transitions, document)
                except ZaqarLiteError as refused:
                    raise lost or refused from None
                if document != seen:
                    document["x"] = mark
                    changes.append(Change(state.key, seen, document))
            if refuses(answers.values()):
                return Changed(answers, changed, lost)
            doomed |= {each.seen["_id"] for each in changes if each.document["s"] == states.GONE}
            try:
                stored = await self._save(changes)
                if stored == len(changes):
                    changed += [change.document for change in changes]
                    return Changed(answers, changed, lost)
                version = None if stored else version
            except PyMongoError as exc:
                await budget.pause(exc)
                lost, version = exc, None
        text = f"Others change the same messages of the queue {queue.name!r} again and again."
        raise Unavailable(text)

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages that are still as they were read a moment before; see the seam."""
        wanted = _named(ids, queue)
        if claim_ids is None:
            doomed = {**wanted, "s": {"$in": states.LIVE}}
            await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))
            return ()

        def delete_one(transitions: Transitions, document: Document) -> RefusalReason | None:
            if not transitions.is_live(document):
                return None
            holder = document["cid"] if transitions.state.is_held(document) else None
            reason = delete_refusal(holder, claim_ids)
            if reason is None:
                document["s"] = states.GONE
            return reason

        answers, _, _ = await self._change(
            queue, wanted, delete_one, projection=dict.fromkeys(GUARDED, 1), refuses=any
        )
        return [Refusal(one, reason) for one, reason in answers.items() if reason is not None]

    async def _save_again(self, changes: Sequence[Change]) -> int:
        """Store changes as `_save` does, again after a lost connection."""
        return await repeated(lambda: self._save(changes))

    async def _save(self, changes: Sequence[Change]) -> int:
        """Store changes of messages of one queue; answer how many were stored.

        Where some move to another queue (all to one), all are stored in one transaction, or none.
        """
        if not changes:
            return 0
        letters = [change for change in changes if change.target != change.key]
        count = await (self._move(changes, letters) if letters else self._write(changes))
        if count:
            self._announce(changes)
        return count

    async def _write(self, changes: Sequence[Change], session: Session = None) -> int:
        result: BulkWriteResult = await self._connection.messages.bulk_write(
            statements(changes), ordered=False, session=session
        )
        return result.matched_count + result.deleted_count

    async def _move(self, changes: Sequence[Change], letters: Sequence[Change]) -> int:
        async def move(session: AsyncClientSession) -> None:
            state = await self._queues.advance(session, letters[0].target, messages=len(letters))
            for position, letter in enumerate(letters, state.counter - len(letters) + 1):
                letter.document["k"] = Int64(position)
            if await self._write(changes, session) < len(changes):
                raise _Stale

        try:
            await self._queues.in_transaction(move)
        except _Stale:
            return 0
        return len(changes)

    def _announce(self, changes: Sequence[Change]) -> None:
        for key in {change.target for change in changes}:
            ready = [c for c in changes if c.target == key and c.document["s"] == states.READY]
            self._readiness.announce(queue_of(key), len(ready))


def _named(ids: Collection[str], *queues: QueueRef | None) -> Document:
    """The filter of messages by their ids, in any of these queues."""
    wanted = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
    keys = [key_of(queue) for queue in queues if queue is not None]
    return {"_id": {"$in": wanted}, "q": keys[0] if len(keys) == 1 else {"$in": keys}}


def _held(queue: QueueRef, claim_id: str) -> Document:
    """The filter of what a claim holds, or held when its lease lapsed."""
    return {"q": key_of(queue), "cid": claim_id, "s": states.CLAIMED}
