"""The lease of one claim or pop: which messages it may take, what it took, and how it ends."""

import time
from collections.abc import Sequence
from typing import Any

import pymongo
from bson import Int64
from pymongo import UpdateMany
from pymongo.results import BulkWriteResult

from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import ClaimRequest, DelayMode
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import NO_ATTEMPTS
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import QueueState, ids_of

POP_TIME_MS = 60_000
"""How long a pop may take to read and delete its messages; then the sweep makes them ready."""

REMOVAL_SECONDS = 15
"""How long a pop waits for its delete: well within POP_TIME_MS."""

_MOST_CLEANUPS = 1_000


class LeaseHandle:
    """What one call holds under an id of its own, `token`.

    `held` is the state of its messages: CLAIMED for the ttl of the claim, or POPPED for as long as
    the call takes.
    """

    def __init__(
        self, connection: Connection, state: QueueState, request: ClaimRequest, held: int
    ) -> None:
        self.token = new_claim_id()
        self.started_at = state.now
        self.key = state.key
        self.held = held
        self.taken: list[Document] = []
        self._connection = connection
        self._began = time.monotonic()
        self._request = request
        free: list[Document] = [
            {"s": states.READY},
            {"s": states.PARKED, "w": {"$lte": state.date}},
        ]
        if request.delay_mode is DelayMode.HONOUR:
            free.append({"s": states.DELAYED, "w": {"$lte": state.date}})
        self.claimable: Document = {
            "q": state.key,
            "k": {"$gt": Int64(state.birth)},
            "e": {"$gt": state.date},
            "$or": free,
        }

    async def acquire(self, wanted: Sequence[Document], due: Sequence[Document]) -> None:
        """Take what is still free of `wanted`, make `due` ready, and read all that is held now."""
        tries = 0

        async def update() -> BulkWriteResult:
            nonlocal tries
            tries += 1
            return await self._connection.messages.bulk_write(updates, ordered=True)

        updates: list[UpdateMany] = []
        if wanted:
            condition = {"_id": {"$in": ids_of(wanted)}, **self.claimable}
            if self._request.retries.dead_letter is not None:
                condition["n"] = {"$lt": self._request.retries.dead_letter.max_claims}
            updates.append(UpdateMany(condition, self._take_update(), hint=BY_ID))
        if due:
            condition = {"_id": {"$in": ids_of(due)}, **self.claimable}
            updates.append(UpdateMany(condition, ready_update(), hint=BY_ID))
        result = await repeated(update)
        if result.matched_count or tries > 1:
            self.taken = await self._read()

    async def remove(self) -> None:
        """Delete what was popped, within the time that it is held for.

        Where that time was over before the delete arrived, others have some of the messages by now:
        those are not in `taken` any more.

        Raises:
            Unavailable: it took so long to read that others may have it by now.
        """
        if time.monotonic() - self._began > POP_TIME_MS / 1000 - REMOVAL_SECONDS:
            raise Unavailable("MongoDB was too slow for a pop; the messages come back.")
        messages = self._connection.messages
        named: Document = {"_id": {"$in": ids_of(self.taken)}}
        mine = {**named, "q": self.key, "cid": self.token, "s": states.POPPED}
        with pymongo.timeout(REMOVAL_SECONDS):
            result = await repeated(lambda: messages.delete_many(mine, hint=BY_ID))
            if result.deleted_count < len(self.taken):
                left = ids_of(await messages.find(named, {"_id": 1}, hint=BY_ID).to_list())
                self.taken = [one for one in self.taken if one["_id"] not in left]

    async def _read(self) -> list[Document]:
        """Read what is held, in order; its lease tells when it began by the server's clock."""
        found = await repeated(
            lambda: self._connection.messages.find(
                {"q": self.key, "cid": self.token, "s": self.held},
                self._projection(),
                hint="claim",
                batch_size=MAX_EXAMINED,
            ).to_list()
        )
        if found and self.held == states.CLAIMED:
            self.started_at = int(found[0]["w"]) - self._request.ttl_ms
        return sorted(
            (document for document in found if int(document["e"]) > self.started_at),
            key=lambda document: document["k"],
        )

    def _projection(self) -> Document | None:
        """Leave out the attempts unless they are asked for, and the delay in a normal queue."""
        unread = {} if self._request.details else dict(NO_ATTEMPTS)
        if self._request.delay_mode is DelayMode.IGNORE:
            unread["d"] = 0
        return unread or None

    def _take_update(self) -> list[Document]:
        """The update of what is taken; a message that expired meanwhile stays expired."""
        now = self._connection.now
        changes: dict[str, Any] = {"cid": self.token, "s": self.held}
        if self.held == states.POPPED:
            return [{"$set": {**changes, "w": {"$add": [now, POP_TIME_MS]}}}]
        request, end = self._request, {"$add": [now, self._request.ttl_ms]}
        changes |= {
            "cu": {"$literal": request.client_id},
            "ct": Int64(request.ttl_ms),
            "ca": now,
            "cs": now,
            "l": None,
            "w": end,
            "n": {"$add": ["$n", 1]},
            **raised_ttl(now, end, request.ttl_ms, request.grace_ms),
        }
        return [{"$set": changes}]


class PendingCleanups:
    """What calls of this process could not finish: its sweep does, until their leases end.

    It is lost with the process. Then the leases end by time, and the messages are ready again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._handles: list[tuple[LeaseHandle, bool]] = []

    def add(self, handle: LeaseHandle, *, was_answered: bool) -> None:
        """Note that messages are to be deleted, if a caller was given them, or else given back."""
        if len(self._handles) < _MOST_CLEANUPS:
            self._handles.append((handle, was_answered))

    async def finish(self) -> int:
        """Do what can be done; answer how many messages that were. Giving back counts no claim."""
        count = 0
        while self._handles:
            handle, was_answered = self._handles[0]
            mine = {"q": handle.key, "cid": handle.token, "s": handle.held}
            messages = self._connection.messages
            if was_answered:
                count += (await messages.delete_many(mine, hint="claim")).deleted_count
            else:
                counted = {"n": {"$add": ["$n", -1]}} if handle.held == states.CLAIMED else {}
                update = ready_update(**counted)
                count += (await messages.update_many(mine, update, hint="claim")).modified_count
            del self._handles[0]
        return count


def ready_update(**changes: Document) -> list[Document]:
    """The update that makes messages ready, and changes other fields with that."""
    return [{"$set": {"s": states.READY, **changes}}, {"$unset": "w"}]


def raised_ttl(now: Document, end: Document, ttl_ms: int, grace_ms: int) -> Document:
    """The fields of a message that must not end before its claim does, at `end`."""
    ends_early = {"$and": [{"$gt": ["$e", now]}, {"$lt": ["$e", end]}]}
    raised = ttl_ms + grace_ms
    return {
        "t": {"$cond": [ends_early, Int64(raised), "$t"]},
        "e": {"$cond": [ends_early, {"$add": [now, raised]}, "$e"]},
    }


def ended_delay(now: Document) -> Document:
    """The delay of a message that becomes ready before its time: it is over now."""
    return {"$cond": [{"$eq": ["$s", states.DELAYED]}, {"$min": ["$d", now]}, "$d"]}
