"""Changing single messages: edits of what is delayed, and deletes."""

from collections.abc import Collection, Sequence

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ReturnDocument

from zaqar_lite.domain.errors import Conflict, DueChanged, Invalid, NotFound
from zaqar_lite.domain.ids import is_message_id
from zaqar_lite.domain.models import Edit, Message, QueueRef, Refusal, RefusalReason
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import (
    CLAIMED,
    DELAYED,
    LIVE_STATES,
    PARKED,
    READY,
    Queues,
    key_of,
    reading,
)
from zaqar_lite.storage.mongodb.readiness import Readiness

_ROUNDS = 10
_LOCK: Document = {"s": 1, "k": 1, "e": 1, "w": 1, "cid": 1}
"""The projection of what tells whether a message may be deleted."""


class Changing:
    """Edit and delete messages by their ids."""

    def __init__(self, connection: Connection, queues: Queues, readiness: Readiness) -> None:
        self._connection = connection
        self._queues = queues
        self._readiness = readiness

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message in one guarded update; see the seam."""
        messages, message_id = self._connection.messages, edit.message_id
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        for _ in range(_ROUNDS):
            state = await self._queues.read(queue, edit.version)
            if state is None or not is_message_id(message_id):
                break
            live = {"_id": message_id, **state.live}
            guard: Document = {**live, "s": DELAYED, "w": {"$gt": state.date}}
            if edit.if_due is not None:
                second = edit.if_due // 1000 * 1000
                guard["w"] |= {"$gte": DatetimeMS(second), "$lt": DatetimeMS(second + 1000)}
            changes: Document = {} if edit.body is None else {"b": edit.body}
            due = None if delay_ms is None else DatetimeMS(state.now + delay_ms)
            end = None if ttl_ms is None else DatetimeMS(state.now + ttl_ms)
            if end is not None:
                changes |= {"t": Int64(ttl_ms or 0), "e": end}
            update: Document = {"$set": changes}
            if due is not None:
                changes |= {"d": due, "w": due}
            if delay_ms == 0:
                changes["s"] = READY
                del changes["w"]
                update["$unset"] = {"w": True}
            if due is not None and end is None:
                guard["e"] = {"$gt": state.date, "$gte": due}
            elif end is not None and due is None:
                guard["w"] |= {"$lte": end}
            is_possible = due is None or end is None or due <= end
            edited = is_possible and await messages.find_one_and_update(
                guard, update, return_document=ReturnDocument.AFTER
            )
            if edited:
                self._readiness.announce(queue, int(delay_ms == 0))
                return to_message(edited, state.now)
            found = await messages.find_one(live, hint=BY_ID)
            if found is None:
                break
            if found["s"] != DELAYED or found["w"] <= state.date:
                raise Conflict(f"Message {message_id} is not delayed (any more).")
            _refuse(edit, int(found["w"]), int(due or found["w"]) - int(end or found["e"]))
        raise NotFound(f"Message {message_id} does not exist.")

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages: a look that refuses, then a delete with the same guard; see the seam."""
        wanted = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        if not wanted:
            return ()
        if claim_ids is not None:
            return await self._delete_checked(queue, wanted, list(claim_ids))
        doomed = {"_id": {"$in": wanted}, "q": key_of(queue), "s": {"$in": LIVE_STATES}}
        await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))
        return ()

    async def _delete_checked(
        self, queue: QueueRef, wanted: Sequence[str], claim_ids: list[str]
    ) -> Sequence[Refusal]:
        refused: list[Refusal] = []
        key = key_of(queue)
        among = {"_id": {"$in": wanted}, "q": key, "s": {"$in": LIVE_STATES}}
        for _ in range(_ROUNDS):
            found = await self._queues.look_for(queue, reading(among, _LOCK), BY_ID)
            live = {document["_id"]: document for document in found.live}
            now = found.state.now if found.state else 0
            refused = [
                Refusal(message_id, reason)
                for message_id in wanted
                if message_id in live
                and (reason := _refusal(live[message_id], claim_ids, now)) is not None
            ]
            if refused or not live:
                break
            guard: Document = {"s": CLAIMED, "cid": {"$in": claim_ids}}
            if not claim_ids:
                lapsed = {"s": CLAIMED, "w": {"$lte": DatetimeMS(now)}}
                guard = {"$or": [{"s": {"$in": [READY, DELAYED, PARKED]}}, lapsed]}
            doomed = {"_id": {"$in": list(live)}, "q": key, **guard}
            result = await repeated(
                lambda: self._connection.messages.delete_many(doomed, hint=BY_ID)  # noqa: B023 - awaited here
            )
            if result.deleted_count == len(live):
                break
            # Somebody deleted, claimed or freed one in between: look again at what is left.
        return refused


def _refuse(edit: Edit, due: int, early: int) -> None:
    """Refuse an edit of a message that is `due`, and would expire `early` ms before its delay ends.

    Raises:
        DueChanged: it is due at another instant than its editor has seen.
        Invalid: it would expire before its delay is over.
    """
    if edit.is_stale(due):
        raise DueChanged(edit.message_id)
    if early > 0:
        raise Invalid(
            f"Message {edit.message_id} would expire {early} ms before its delay is over: give a "
            "longer ttl or a shorter delay."
        )


def _refusal(document: Document, claim_ids: Collection[str], now: int) -> RefusalReason | None:
    """Why a message may not be deleted by these claims; None when it may."""
    if document["s"] == CLAIMED and int(document["w"]) > now:
        return None if document["cid"] in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None
