"""Sweeping: remove what has expired, wake what is due, finish the moves of those who died."""

from collections.abc import Sequence
from itertools import groupby

from bson.datetime_ms import DatetimeMS
from pymongo import UpdateMany

from zaqar_lite.domain.models import QueueRef, Swept
from zaqar_lite.storage.mongodb.claiming import exposed_delay
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.placing import Placing
from zaqar_lite.storage.mongodb.queues import CLAIMED, DELAYED, LIVE_STATES, READY, Queues

MOVE_TIME_MS = 5_000
"""How long a move may take before the sweep finishes it for its mover."""


class Sweeping:
    """Tidy up in bounded steps; every step is guarded, so any number of nodes may sweep."""

    def __init__(self, connection: Connection, queues: Queues, placing: Placing) -> None:
        self._connection = connection
        self._queues = queues
        self._placing = placing

    async def sweep(self, limit: int) -> Swept:
        """Tidy up about `limit` entries over all queues; see the seam."""
        now = await self._connection.now_ms()
        expired = await self._expire(now, limit)
        promoted, lapsed = await self._wake(now, max(1, limit - expired))
        moved = await self._finish_moves(now, limit)
        return Swept(expired=expired, promoted=promoted, lapsed=lapsed, moved=moved)

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
            hint="wake",
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

    async def _expire(self, now: int, limit: int) -> int:
        gone = {"e": {"$lte": DatetimeMS(now)}}
        cursor = self._connection.messages.find(
            gone, {"q": 1, "s": 1}, limit=limit, batch_size=limit, hint="expiry"
        )
        found = await cursor.to_list()
        for key, documents in _by_queue(found):
            doomed = {"_id": {"$in": _ids(documents)}, "q": key, **gone}
            await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))  # noqa: B023 - awaited here
        return sum(document["s"] in LIVE_STATES for document in found)

    async def _wake(self, now: int, limit: int) -> tuple[int, int]:
        """Promote what is due and free what has lapsed; counts messages, and claims."""
        awake = {"s": {"$in": [DELAYED, CLAIMED]}, "w": {"$lte": DatetimeMS(now)}}
        cursor = self._connection.messages.find(
            {**awake, "e": {"$gt": DatetimeMS(now)}},
            {"q": 1, "s": 1, "cid": 1},
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
        claims = {document["cid"] for document in found if document["s"] == CLAIMED}
        return sum(document["s"] == DELAYED for document in found), len(claims)

    async def _finish_moves(self, now: int, limit: int) -> int:
        """Commit the moves whose movers have not, for too long; counts them."""
        before = DatetimeMS(now - MOVE_TIME_MS)
        cursor = self._connection.queues.find(
            {"mv.at": {"$lte": before}}, {"mv": 1}, limit=limit, batch_size=limit, hint="moves"
        )
        count = 0
        for document in await cursor.to_list():
            stale = [move["t"] for move in document["mv"] if move["at"] <= before]
            await self._placing.finish_moves(document["_id"], stale)
            count += len(stale)
        return count


def _ids(documents: Sequence[Document]) -> list[str]:
    return [document["_id"] for document in documents]


def _by_queue(documents: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    ordered = sorted(documents, key=lambda document: document["q"])
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda d: d["q"])]
