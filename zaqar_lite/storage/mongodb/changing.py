"""Changing single messages: edits of what is delayed, and deletes."""

from collections.abc import Collection, Sequence

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import ReturnDocument
from pymongo.errors import AutoReconnect

from zaqar_lite.domain.errors import Conflict, DueChanged, Invalid, NotFound
from zaqar_lite.domain.ids import is_message_id, new_claim_id
from zaqar_lite.domain.models import Edit, Message, QueueRef, Refusal, RefusalReason
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.parts import StorePart
from zaqar_lite.storage.mongodb.queues import (
    CLAIMED,
    DELAYED,
    LIVE_STATES,
    PARKED,
    READY,
    QueueState,
    key_of,
    reading,
)

_ROUNDS = 10
_HOLDER: Document = {"s": 1, "k": 1, "e": 1, "w": 1, "cid": 1}
"""The projection of the fields that tell whether a message may be deleted."""


class Changing(StorePart):
    """Edit and delete messages by their ids."""

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message in one guarded update; see the seam.

        The update writes a mark of this call. When an answer was lost, the edit is tried again. If
        the message does not fit any more, the mark tells whether the first try was carried out. If
        others have changed the message since, nobody can tell, and the answer is Unavailable.
        """
        messages, message_id, mark = self._connection.messages, edit.message_id, new_claim_id()
        lost: AutoReconnect | None = None
        for _ in range(_ROUNDS if is_message_id(message_id) else 0):
            state = await self._queues.read(queue, edit.version)
            if state is None:
                break
            guard, update = _guarded_edit(edit, state, mark)
            try:
                found = await messages.find_one_and_update(
                    guard, update, return_document=ReturnDocument.AFTER
                )
            except AutoReconnect as exc:
                if lost is not None:
                    raise
                lost = exc
                continue
            if found is None:
                found = await messages.find_one({"_id": message_id, **state.live}, hint=BY_ID)
            if found is not None and found.get("x") == mark:
                self._readiness.announce(queue, int(edit.delay_ms == 0))
                return to_message(found, state.now)
            if lost is not None:
                raise lost
            if found is None:
                break
            _check_editable(edit, found, state)
        raise NotFound(f"Message {message_id} does not exist.")

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages that are still as they were read a moment before; see the seam."""
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
            found = await self._queues.find_with_state(queue, reading(among, _HOLDER), BY_ID)
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


def _guarded_edit(edit: Edit, state: QueueState, mark: str) -> tuple[Document, Document]:
    """The filter and the update of an edit; the filter refuses what may not be edited."""
    guard: Document = {"_id": edit.message_id, **state.live}
    guard |= {"s": DELAYED, "w": {"$gt": state.date}}
    if edit.if_due is not None:
        second = edit.if_due // 1000 * 1000
        guard["w"] |= {"$gte": DatetimeMS(second), "$lt": DatetimeMS(second + 1000)}
    changes: Document = {"x": mark} if edit.body is None else {"x": mark, "b": edit.body}
    due, end = _new_deadlines(edit, state)
    if end is not None:
        changes |= {"t": Int64(edit.ttl_ms or 0), "e": end}
    if due is not None:
        changes |= {"d": due, "w": due}
    update: Document = {"$set": changes}
    if edit.delay_ms == 0:
        changes["s"] = READY
        del changes["w"]
        update["$unset"] = {"w": True}
    if due is None and end is not None:
        guard["w"] |= {"$lte": end}
    elif due is not None and end is None:
        guard["e"] = {"$gt": state.date, "$gte": due}
    elif due is not None and end is not None and due > end:
        guard["s"] = {"$in": []}  # an edit that contradicts itself fits no message
    return guard, update


def _new_deadlines(edit: Edit, state: QueueState) -> tuple[DatetimeMS | None, DatetimeMS | None]:
    """When the delay and the message are to end by an edit; None for what it leaves as it is."""
    due = None if edit.delay_ms is None else DatetimeMS(state.now + edit.delay_ms)
    end = None if edit.ttl_ms is None else DatetimeMS(state.now + edit.ttl_ms)
    return due, end


def _check_editable(edit: Edit, found: Document, state: QueueState) -> None:
    """Say why a message does not fit an edit; it may fit by now, if others changed it meanwhile.

    Raises:
        Conflict: it is not delayed.
        DueChanged: it is due at another instant than its editor has seen.
        Invalid: it would expire before its delay is over.
    """
    if found["s"] != DELAYED or found["w"] <= state.date:
        raise Conflict(f"Message {edit.message_id} is not delayed (any more).")
    if edit.is_stale(int(found["w"])):
        raise DueChanged(edit.message_id)
    due, end = _new_deadlines(edit, state)
    early_ms = int(due or found["w"]) - int(end or found["e"])
    if early_ms > 0:
        raise Invalid(
            f"Message {edit.message_id} would expire {early_ms} ms before its delay is over: give "
            "a longer ttl or a shorter delay."
        )


def _refusal(document: Document, claim_ids: Collection[str], now: int) -> RefusalReason | None:
    """Why a message may not be deleted by these claims; None when it may."""
    if document["s"] == CLAIMED and int(document["w"]) > now:
        return None if document["cid"] in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None
