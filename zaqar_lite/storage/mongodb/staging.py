"""Staging: messages with idempotency keys, written where nobody sees them until their keys know.

A keyed post writes documents of its own in the state STAGED, then its keys, then brings the
messages in. The key's document decides, in one step: whoever wrote it first has stored the message,
and what another post of that key has staged is withdrawn. So a message that was ever seen has its
key, and a repetition never stores it again, however slow a writer was and wherever one died.

What a dead writer has left staged is brought in by the retry. One at a time does that: who holds
the first of the messages (`r`, since `at`) takes the others too, and everything it does to them
asks for its own `r`. A holder that was slow, and was taken for dead, changes nothing any more.
The lease decides nothing but the order: should the server mix the command of a taker with that of a
holder who wakes up right then, each message is still brought in by one of them, once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.errors import is_duplicate, repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.placing import Arrivals, Placing, Taken
from zaqar_lite.storage.mongodb.queues import DELAYED, READY, STAGED, Queues, QueueState

Admit = Callable[[QueueState, int, int], Awaitable[None]]
"""Refuses `(state, base, messages)` with LimitReached."""

LEASE_MS = 5_000
"""How long a writer may take to bring its messages in before another does it."""

_LONG_AGO = DatetimeMS(0)


@dataclass(frozen=True, slots=True)
class Bringer:
    """One post that brings messages in: what it holds them by, its limits, its new keys."""

    holder: str
    admit: Admit
    keys: int = 0


class Staging:
    """Write messages that nobody sees yet, and bring them into their queue."""

    def __init__(self, connection: Connection, queues: Queues, placing: Placing) -> None:
        self.placing = placing
        self._connection = connection
        self._queues = queues

    async def stage(self, state: QueueState, documents: Sequence[Document], holder: str) -> None:
        """Write documents without a position, held by `holder`."""
        for document in documents:
            document |= {"s": STAGED, "r": holder, "at": state.date, "g": Int64(state.birth)}
            del document["k"]
        if documents:
            await self._connection.messages.insert_many(documents, ordered=False)

    async def withdraw(self, state: QueueState, ids: Sequence[str], holder: str) -> None:
        """Delete what is staged in vain: other posts' messages stand for its keys."""
        if ids:
            doomed = {**_among(state.key, ids), "s": STAGED, "r": holder}
            await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))

    async def bring_in(self, state: QueueState, ids: Sequence[str], bringer: Bringer) -> bool:
        """Let readers see staged messages that the bringer holds, in this order.

        Answers whether it held all to the end; else `complete` must see to the others.

        Raises:
            LimitReached: the queue is full (by now); they stay staged, for a retry.
        """
        descent = _Descent(self._connection, state.key, ids, bringer)
        await self.placing.let_in(state, descent)
        return not descent.has_lost

    async def complete(self, state: QueueState, ids: Sequence[str], bringer: Bringer) -> None:
        """Make sure that readers see those of these messages that are still there, in this order.

        Their writers may be at it, and are waited for; or have died, and are replaced.

        Raises:
            LimitReached: the queue is full; what is staged stays so, for a retry.
        """
        took_over = False
        seen: QueueState | None = state
        while seen is not None and seen.birth == state.birth:
            unseen = await self._unseen(seen, ids)
            staged = [document for document in unseen if document["s"] == STAGED]
            if not staged:
                if unseen:
                    await self.placing.settle(seen, ids)
                return
            if all(document["r"] == bringer.holder for document in staged):
                waiting = [document["_id"] for document in staged]
                descent = _Descent(self._connection, state.key, waiting, bringer)
                await self.placing.let_in(seen, descent, resume=took_over)
            elif await self._seize(seen, staged, bringer.holder):
                took_over = True
            else:
                await asyncio.sleep(random.uniform(0.005, 0.03))  # noqa: S311 - no secret
            seen = await self._queues.read_key(state.key)

    async def _unseen(self, state: QueueState, ids: Sequence[str]) -> list[Document]:
        """Those that readers do not see yet: staged, or above the counter; in this order."""
        above = {"k": {"$gt": Int64(state.counter)}}
        cursor = self._connection.messages.find(
            {**_among(state.key, ids), "$or": [{"s": STAGED}, above]},
            {"s": 1, "r": 1, "at": 1},
            hint=BY_ID,
            batch_size=len(ids) + 1,
        )
        place = {message_id: number for number, message_id in enumerate(ids)}
        return sorted(await cursor.to_list(), key=lambda document: place[document["_id"]])

    async def _seize(self, state: QueueState, staged: Sequence[Document], holder: str) -> bool:
        """Take all from a dead holder, or the others by right of the first; False: not our turn.

        In one command, so that a holder who wakes up finds all of them its own, or none. Whether
        the taker has got all, or shares them with another taker, it must look.
        """
        first = staged[0]
        guard: Document = {**_among(state.key, [d["_id"] for d in staged]), "s": STAGED}
        if first["r"] != holder:
            overdue = DatetimeMS(state.now - LEASE_MS)
            if first["at"] > overdue:
                return False
            guard["at"] = {"$lte": overdue}
        taken = {"$set": {"r": holder, "at": state.date}}
        await repeated(lambda: self._connection.messages.update_many(guard, taken, hint=BY_ID))
        return True


class _Descent(Arrivals):
    """Staged messages on their way in, as long as the bringer holds them."""

    def __init__(
        self, connection: Connection, key: str, ids: Sequence[str], bringer: Bringer
    ) -> None:
        self.keys = bringer.keys
        self.has_lost = False
        self._connection = connection
        self._key = key
        self._waiting = list(ids)
        self._placed: list[str] = []
        self._bringer = bringer

    async def admit(self, state: QueueState, base: int) -> None:
        """Check the limits; see there."""
        await self._bringer.admit(state, base, len(self._placed) + len(self._waiting))

    async def write(self, base: int) -> int:
        """Give all their positions, and show what was staged, in one command; see there.

        The positions first, the last one before the others, so that none is in the way; the
        command ends at the first that is taken, and then nothing more has been shown.
        """
        ids = [*self._placed, *self._waiting]
        if not ids:
            return 0  # others have taken them over
        updates: list[UpdateOne | UpdateMany] = []
        for position, message_id in reversed(list(enumerate(ids, base + 1))):
            place = {"$set": {"k": Int64(position)}}
            updates.append(UpdateOne(self._own([message_id]), place, hint=BY_ID))
        if self._waiting:
            state = {"$cond": [{"$eq": [{"$type": "$w"}, "missing"]}, READY, DELAYED]}
            staged = {**self._own(self._waiting), "s": STAGED}
            updates.append(UpdateMany(staged, [{"$set": {"s": state}}], hint=BY_ID))
        try:
            result = await repeated(
                lambda: self._connection.messages.bulk_write(updates, ordered=True)
            )
        except BulkWriteError as exc:
            if is_duplicate(exc):
                raise Taken from exc
            raise
        if result.matched_count == len(ids) + len(self._waiting):
            self._placed = ids
        else:
            await self._count_losses(ids)
        self._waiting = []
        return len(ids) if self._placed else 0

    async def withdraw(self) -> None:
        """Stage again what nobody has claimed, for whoever comes next."""
        free = {"s": {"$in": [STAGED, READY, DELAYED]}}
        mine = self._own([*self._placed, *self._waiting])
        update = {"$set": {"s": STAGED, "at": _LONG_AGO}, "$unset": {"k": True}}
        await repeated(
            lambda: self._connection.messages.update_many({**mine, **free}, update, hint=BY_ID)
        )

    async def _count_losses(self, ids: Sequence[str]) -> None:
        """Find what is still ours and shown: the others were taken over, consumed or expired."""
        self.has_lost = True
        cursor = self._connection.messages.find(
            {**self._own(ids), "s": {"$ne": STAGED}},
            {"_id": 1},
            hint=BY_ID,
            batch_size=len(ids) + 1,
        )
        shown = {document["_id"] for document in await cursor.to_list()}
        self._placed = [message_id for message_id in ids if message_id in shown]

    def _own(self, ids: Sequence[str]) -> Document:
        return {**_among(self._key, ids), "r": self._bringer.holder}


def _among(key: str, ids: Sequence[str]) -> Document:
    return {"_id": ids[0] if len(ids) == 1 else {"$in": list(ids)}, "q": key}
