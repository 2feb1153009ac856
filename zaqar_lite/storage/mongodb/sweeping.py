"""Sweeping: wake what is due, clear what purges left, finish what calls could not.

What has expired is the TTL index's, and of claims that meet it.
"""

from collections.abc import Sequence
from itertools import groupby

from bson.datetime_ms import DatetimeMS
from pymongo import UpdateMany

from zaqar_lite.domain.models import QueueRef, RetriesOf, Swept
from zaqar_lite.storage.mongodb.clearing import Clearing
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.grip import LooseEnds, exposed_delay
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import (
    BRIEF,
    CLAIMED,
    DELAYED,
    PARKED,
    POPPED,
    READY,
    Queues,
    queue_of,
)
from zaqar_lite.storage.mongodb.readiness import Readiness
from zaqar_lite.storage.mongodb.rewriting import Change, Rewriting
from zaqar_lite.storage.mongodb.verdicts import Verdicts

_SLEEPING = (DELAYED, CLAIMED, POPPED, PARKED)


class Sweeping:
    """Tidy up in bounded steps; every step is guarded, so any number of nodes may sweep."""

    def __init__(
        self,
        connection: Connection,
        queues: Queues,
        clearing: Clearing,
        *,
        loose_ends: LooseEnds,
        rewriting: Rewriting,
        readiness: Readiness,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._clearing = clearing
        self._loose_ends = loose_ends
        self._rewriting = rewriting
        self._readiness = readiness

    async def sweep(self, limit: int, retries_of: RetriesOf) -> Swept:
        """Tidy up about `limit` entries over all queues; see the seam."""
        finished = await self._loose_ends.tie_up()
        now = await self._connection.now_ms()
        found = await self._awake(now, limit)
        lapsed = [document for document in found if document["s"] == CLAIMED]
        offered = [document for document in found if document["s"] != CLAIMED]
        await self._offer(now, offered)
        swept = Swept(promoted=len(offered), deleted=finished)
        if lapsed:
            swept = await self._end_lapsed(lapsed, retries_of, swept)
        deleted = await self._clearing.sweep(max(1, limit - len(found)))
        return swept._replace(deleted=swept.deleted + deleted)

    async def expose(self, ref: QueueRef, limit: int) -> int:
        """Make delayed messages ready, whatever their delay; see the seam."""
        state = await self._queues.read(ref)
        if state is None:
            return 0
        cursor = self._connection.messages.find(
            {
                "q": state.key,
                "s": DELAYED,
                "w": {"$exists": True},
                "k": state.visible,
                "e": {"$gt": state.date},
            },
            {"_id": 1},
            sort=[("w", 1)],
            limit=limit,
            batch_size=limit,
            hint="waking",
        )
        found = await cursor.to_list()
        if found:
            update: list[Document] = [
                {"$set": {"d": exposed_delay(self._connection.now), "s": READY}},
                {"$unset": "w"},
            ]
            await repeated(
                lambda: self._connection.messages.update_many(
                    {"_id": {"$in": _ids(found)}, "q": state.key, "s": DELAYED}, update, hint=BY_ID
                )
            )
        self._readiness.announce(ref, len(found))
        return len(found)

    async def _awake(self, now: int, limit: int) -> list[Document]:
        """What time alone has woken, in any queue."""
        cursor = self._connection.messages.find(
            {"s": {"$in": _SLEEPING}, "w": {"$lte": DatetimeMS(now)}},
            BRIEF,
            sort=[("w", 1)],
            limit=limit,
            batch_size=limit,
            hint="due",
        )
        return await cursor.to_list()

    async def _offer(self, now: int, found: Sequence[Document]) -> None:
        """Make ready what waited, or what a pop has not removed in its time."""
        due = {"s": {"$in": [DELAYED, PARKED, POPPED]}, "w": {"$lte": DatetimeMS(now)}}
        by_queue = _by_queue(found)
        updates = [
            UpdateMany(
                {"_id": {"$in": _ids(documents)}, "q": key, **due},
                [{"$set": {"s": READY}}, {"$unset": "w"}],
                hint=BY_ID,
            )
            for key, documents in by_queue
        ]
        if updates:
            await repeated(lambda: self._connection.messages.bulk_write(updates, ordered=False))
        for key, documents in by_queue:
            self._readiness.announce(queue_of(key), len(documents))

    async def _end_lapsed(
        self, found: Sequence[Document], retries_of: RetriesOf, swept: Swept
    ) -> Swept:
        """End leases whose time is over, each a failure."""
        by_queue = _by_queue(found)
        states = await self._queues.read_many([key for key, _ in by_queue])
        for key, documents in by_queue:
            if key not in states:  # its tombstone is gone, and nobody can see what it has left
                await self._rewriting.remove(key, _ids(documents), CLAIMED)
                continue
            ref = queue_of(key)
            verdicts = Verdicts(ref, states[key], await retries_of(ref))
            changes = [Change(key, document, dict(document)) for document in documents]
            for change in changes:
                verdicts.lapse(change.document)
            count = await self._rewriting.write(changes)
            moved = [change for change in changes if change.target != key] if count else []
            swept = swept._replace(
                lapsed=swept.lapsed + count - len(moved),
                moved=swept.moved + len(moved),
                letters_in=swept.letters_in | {queue_of(letter.target) for letter in moved},
            )
        return swept


def _ids(documents: Sequence[Document]) -> list[str]:
    return [document["_id"] for document in documents]


def _by_queue(documents: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    ordered = sorted(documents, key=lambda document: document["q"])
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda d: d["q"])]
