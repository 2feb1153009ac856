"""Sweeping: wake what is due, clear what purges left, finish what calls could not.

What has expired is the TTL index's, and of claims that meet it.
"""

from collections.abc import Sequence
from itertools import groupby

from bson.datetime_ms import DatetimeMS
from pymongo import UpdateMany

from zaqar_lite.domain.models import QueueRef, Swept
from zaqar_lite.storage.mongodb.clearing import Clearing
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.grip import LooseEnds, exposed_delay
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import CLAIMED, DELAYED, POPPED, READY, Queues


class Sweeping:
    """Tidy up in bounded steps; every step is guarded, so any number of nodes may sweep."""

    def __init__(
        self,
        connection: Connection,
        queues: Queues,
        clearing: Clearing,
        loose_ends: LooseEnds,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._clearing = clearing
        self._loose_ends = loose_ends

    async def sweep(self, limit: int) -> Swept:
        """Tidy up about `limit` entries over all queues; see the seam."""
        finished = await self._loose_ends.tie_up()
        now = await self._connection.now_ms()
        promoted, lapsed = await self._wake(now, limit)
        deleted = await self._clearing.sweep(max(1, limit - promoted - lapsed))
        return Swept(promoted=promoted, lapsed=lapsed, deleted=deleted + finished)

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
        return len(found)

    async def _wake(self, now: int, limit: int) -> tuple[int, int]:
        """Promote what is due, free what has lapsed; counts messages, and claims or pops."""
        awake = {"s": {"$in": [DELAYED, CLAIMED, POPPED]}, "w": {"$lte": DatetimeMS(now)}}
        cursor = self._connection.messages.find(
            awake,
            {"q": 1, "s": 1, "cid": 1},
            sort=[("w", 1)],
            limit=limit,
            batch_size=limit,
            hint="due",
        )
        found = await cursor.to_list()
        updates = [
            UpdateMany(
                {"_id": {"$in": _ids(documents)}, "q": key, **awake},
                [{"$set": {"s": READY}}, {"$unset": "w"}],
                hint=BY_ID,
            )
            for key, documents in _by_queue(found)
        ]
        if updates:
            await repeated(lambda: self._connection.messages.bulk_write(updates, ordered=False))
        claims = {document["cid"] for document in found if document["s"] != DELAYED}
        return sum(document["s"] == DELAYED for document in found), len(claims)


def _ids(documents: Sequence[Document]) -> list[str]:
    return [document["_id"] for document in documents]


def _by_queue(documents: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    ordered = sorted(documents, key=lambda document: document["q"])
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda d: d["q"])]
