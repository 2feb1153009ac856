"""Claims that are live: read from the messages they hold, which is all there is of a claim."""

from collections.abc import Sequence
from typing import NamedTuple

from bson import Int64
from bson.datetime_ms import DatetimeMS

from zaqar_lite.domain.errors import NotFound
from zaqar_lite.domain.ids import is_claim_id
from zaqar_lite.domain.models import Claim, QueueRef
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.grip import raised_ttl
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.queues import CLAIMED, READY, key_of


class Among(NamedTuple):
    """Live messages that were found by something else than their positions."""

    messages: list[Document]
    now: int


async def live_among(connection: Connection, key: str, match: Document, hint: str) -> Among:
    """Read the live messages of a queue that match, and the server's time, in one command.

    The queue's document comes with them, because it tells which positions have ended.
    """
    birth = [{"$match": {"_id": key}}, {"$project": {"b": 1}}]
    found = await read_all(
        connection.messages,
        [
            {"$match": {"q": key, **match}},
            {"$unionWith": {"coll": connection.queues.name, "pipeline": birth}},
            {"$addFields": {"now": connection.now}},
        ],
        hint=hint,
    )
    queue = next((document for document in found if document["_id"] == key), None)
    if queue is None or "b" not in queue:
        return Among([], 0)
    now = queue["now"]
    live = [d for d in found if d["_id"] != key and d["k"] > queue["b"] and d["e"] > now]
    return Among(live, int(now))


class Holding:
    """Read, renew and release claims."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, queue: QueueRef, claim_id: str) -> Claim:
        """Read a claim; see the seam."""
        found, now = await self._held(queue, claim_id)
        ends = max(int(document["w"]) for document in found)
        ttl_ms = found[0].get("ct", ends - now)  # earlier versions did not write it here
        return Claim(
            claim_id,
            ttl_ms,
            max(0, now - (ends - ttl_ms)),
            [to_message(document, now) for document in sorted(found, key=lambda d: d["k"])],
        )

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a claim, and what it holds, live on; see the seam."""
        _, seen_at = await self._held(queue, claim_id)
        now = self._connection.now
        end = {"$add": [now, ttl_ms]}
        update = {"w": end, "ct": Int64(ttl_ms), **raised_ttl(now, end, ttl_ms, grace_ms)}
        alive = {"w": {"$gt": DatetimeMS(seen_at)}}
        mine = {"q": key_of(queue), "cid": claim_id, "s": CLAIMED, **alive}
        await repeated(
            lambda: self._connection.messages.update_many(mine, [{"$set": update}], hint="claim")
        )

    async def release(self, queue: QueueRef, claim_id: str) -> None:
        """Free what a claim still holds; see the seam."""
        if is_claim_id(claim_id):
            mine = {"q": key_of(queue), "cid": claim_id, "s": CLAIMED}
            freed = {"$set": {"s": READY}, "$unset": {"w": True}}
            await repeated(lambda: self._connection.messages.update_many(mine, freed, hint="claim"))

    async def _held(self, queue: QueueRef, claim_id: str) -> tuple[Sequence[Document], int]:
        """What a claim holds.

        Raises:
            NotFound: nothing (any more), so it has ended.
        """
        if is_claim_id(claim_id):
            match = {"cid": claim_id, "s": CLAIMED}
            found, now = await live_among(self._connection, key_of(queue), match, "claim")
            held = [document for document in found if int(document["w"]) > now]
            if held:
                return held, now
        raise NotFound(f"Claim {claim_id} does not exist or has expired.")
