"""Sweeping: make ready what is due, end lapsed leases, finish what purges and calls left.

What has expired is deleted by the TTL index, and by claims that meet it.
"""

from collections.abc import Sequence
from itertools import groupby

from bson.datetime_ms import DatetimeMS
from pymongo import UpdateMany

from zaqar_lite.domain.models import QueueRef, RetryPolicyOf, SweepResult, no_retries
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.clearing import Clearing
from zaqar_lite.storage.mongodb.connection import find_first
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.guarded_updates import Change
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.leases import ended_delay, ready_update
from zaqar_lite.storage.mongodb.queues import BRIEF, ids_of, queue_of
from zaqar_lite.storage.mongodb.transitions import Transitions

_SLEEPING = (*states.WAITING, states.POPPED)


class Sweeping(Clearing):
    """Tidy up in bounded steps; every step is guarded, so any number of nodes may sweep."""

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Tidy up about `limit` entries over all queues; see the seam."""
        finished = await self._cleanups.finish()
        now = await self._connection.now_ms()
        found = await self._due(now, limit)
        lapsed = [document for document in found if document["s"] == states.CLAIMED]
        due = [document for document in found if document["s"] != states.CLAIMED]
        await self._make_ready(now, due)
        swept = await self._end_lapsed(lapsed, retries_of) if lapsed else SweepResult()
        deleted = await self._clear_all(max(1, limit - len(found)))
        return swept.plus(SweepResult(promoted=len(due), deleted=finished + deleted))

    async def release_delayed(
        self, queue: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        """Make delayed messages ready, whatever their delay; see the seam."""
        state = await self._queues.read(queue, version)
        if state is None:
            return 0
        delayed = {**state.live, "s": states.DELAYED, "w": {"$exists": True}}
        found = await find_first(
            self._connection.messages,
            delayed,
            {"_id": 1},
            order=["w"],
            limit=limit,
            hint="waking",
        )
        if found:
            update = ready_update(d=ended_delay(self._connection.now))
            await repeated(
                lambda: self._connection.messages.update_many(
                    {"_id": {"$in": ids_of(found)}, "q": state.key, "s": states.DELAYED},
                    update,
                    hint=BY_ID,
                )
            )
        self._readiness.announce(queue, len(found))
        return len(found)

    async def _due(self, now: int, limit: int) -> list[Document]:
        """What is due or has lapsed by now, in any queue."""
        due = {"s": {"$in": _SLEEPING}, "w": {"$lte": DatetimeMS(now)}}
        messages = self._connection.messages
        return await find_first(messages, due, BRIEF, order=["w"], limit=limit, hint="due")

    async def _make_ready(self, now: int, found: Sequence[Document]) -> None:
        """Make ready what was delayed or parked, or what a pop has not deleted in its time."""
        due = {
            "s": {"$in": [states.DELAYED, states.PARKED, states.POPPED]},
            "w": {"$lte": DatetimeMS(now)},
        }
        by_queue = _by_queue(found)
        updates = [
            UpdateMany(
                {"_id": {"$in": ids_of(documents)}, "q": key, **due},
                ready_update(),
                hint=BY_ID,
            )
            for key, documents in by_queue
        ]
        if updates:
            await repeated(lambda: self._connection.messages.bulk_write(updates, ordered=False))
        for key, documents in by_queue:
            self._readiness.announce(queue_of(key), len(documents))

    async def _end_lapsed(
        self, found: Sequence[Document], retries_of: RetryPolicyOf
    ) -> SweepResult:
        """End leases whose time is over, each a failure."""
        swept = SweepResult()
        by_queue = _by_queue(found)
        queues = await self._queues.read_many([key for key, _ in by_queue])
        for key, documents in by_queue:
            if key not in queues:  # even its tombstone is gone, so nobody can see its messages
                await self._updates.remove(key, ids_of(documents), states.CLAIMED)
                continue
            queue = queue_of(key)
            transitions = Transitions(queue, queues[key], await retries_of(queue))
            changes = [Change(key, document, dict(document)) for document in documents]
            for change in changes:
                transitions.lapse(change.document)
            count = await self._updates.write(changes)
            moved = [change for change in changes if change.target != key] if count else []
            letters_in = frozenset(queue_of(letter.target) for letter in moved)
            ended = SweepResult(lapsed=count - len(moved), moved=len(moved), letters_in=letters_in)
            swept = swept.plus(ended)
        return swept


def _by_queue(documents: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    ordered = sorted(documents, key=lambda document: document["q"])
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda d: d["q"])]
