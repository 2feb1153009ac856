"""Sweeping: make ready what is due, end lapsed leases, finish what purges and pops left.

What has expired is deleted by the TTL index, and by claims that meet it.
"""

from itertools import groupby

from bson.datetime_ms import DatetimeMS

from zaqar_lite.domain.models import NO_RETRIES, QueueRef, RetryPolicyOf, SweepResult, no_retries
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.claiming import Claiming
from zaqar_lite.storage.mongodb.clearing import Clearing
from zaqar_lite.storage.mongodb.connection import find_first
from zaqar_lite.storage.mongodb.guarded_updates import Change
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import BRIEF, QueueState, ids_of, queue_of
from zaqar_lite.storage.mongodb.transitions import Transitions


class Sweeping(Clearing, Claiming):
    """Tidy up in bounded steps; every step is guarded, so any number of nodes may sweep."""

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Tidy up about `limit` entries over all queues; see the seam."""
        swept = SweepResult(deleted=await self._finish_pops())
        sleeping = {"$in": [*states.WAITING, states.POPPED]}
        due = {"s": sleeping, "w": {"$lte": DatetimeMS(await self._connection.now_ms())}}
        messages = self._connection.messages
        found = await find_first(messages, due, BRIEF, order=["w"], limit=limit, hint="due")
        by_queue = groupby(sorted(found, key=_queue_key), key=_queue_key)
        some = {key: list(group) for key, group in by_queue}
        queues = await self._queues.read_many(some) if some else {}
        for key, documents in some.items():
            if key in queues:
                swept = swept.plus(await self._wake(queues[key], documents, retries_of))
            else:  # even its tombstone is gone, so nobody can see its messages
                doomed = {"_id": {"$in": ids_of(documents)}, **due}
                await messages.delete_many(doomed, hint=BY_ID)
        deleted = await self._clear_all(max(1, limit - len(found)))
        return swept.plus(SweepResult(deleted=deleted))

    async def _wake(
        self, state: QueueState, documents: list[Document], retries_of: RetryPolicyOf
    ) -> SweepResult:
        """Make ready what is due in a queue, and end the leases whose time is over."""
        queue = queue_of(state.key)
        lapsed = sum(document["s"] == states.CLAIMED for document in documents)
        retries = await retries_of(queue) if lapsed else NO_RETRIES
        transitions = Transitions(queue, state, retries)
        changes = [Change(state.key, document, dict(document)) for document in documents]
        for change in changes:
            transitions.wake(change.document)
        if not await self._updates.write(changes):
            return SweepResult()
        letters = [change.target for change in changes if change.target != state.key]
        return SweepResult(
            promoted=len(documents) - lapsed,
            lapsed=lapsed - len(letters),
            moved=len(letters),
            letters_in=frozenset(map(queue_of, letters)),
        )

    async def release_delayed(
        self, queue: QueueRef, limit: int, *, version: int | None = None
    ) -> int:
        """Make delayed messages ready, whatever their delay; see the seam."""
        state = await self._queues.read(queue, version)
        if state is None:
            return 0
        delayed = {**state.live, "s": states.DELAYED, "w": {"$exists": True}}
        messages = self._connection.messages
        found = await find_first(messages, delayed, BRIEF, order=["w"], limit=limit, hint="waking")
        transitions = Transitions(queue, state, NO_RETRIES)
        changes = [Change(state.key, document, dict(document)) for document in found]
        for change in changes:
            transitions.wake(change.document)
        await self._updates.write(changes)
        return len(found)


def _queue_key(document: Document) -> str:
    key: str = document["q"]
    return key
