"""Purging, dropping and sweeping: whatever is tidied up in bounded steps.

A purge or a drop ends all messages by one update. No reader sees their documents from then on,
because their positions are at or below the queue's birth. The field `u` of the queue's document
notes up to which position they are still to be deleted.

The sweep goes on with that, makes ready what is due, ends lapsed leases, and finishes what pops
left. What has expired is deleted by the TTL index, and by claims that meet it.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import NO_RETRIES, QueueRef, RetryPolicyOf, SweepResult, no_retries
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.changing import Change
from zaqar_lite.storage.mongodb.claiming import Claiming
from zaqar_lite.storage.mongodb.connection import find_first
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import BRIEF, QueueState, ids_of, key_of, queue_of
from zaqar_lite.storage.mongodb.transactions import repeated
from zaqar_lite.storage.mongodb.transitions import Transitions

STEP = MAX_EXAMINED
"""How many messages a purge or a drop itself deletes; the sweep deletes the rest."""


class Sweeping(Claiming):
    """Tidy up in bounded steps; every step is guarded, so any number of nodes may sweep."""

    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Tidy up about `limit` entries over all queues; see the seam."""
        swept = SweepResult(deleted=await self._finish_pops())
        sleeping = {"$in": [*states.WAITING, states.POPPED]}
        due = {"s": sleeping, "w": {"$lte": DatetimeMS(await self._connection.now_ms())}}
        messages = self._connection.messages
        found = await find_first(messages, due, BRIEF, order=["w"], limit=limit, hint="due")
        by_queue = groupby(sorted(found, key=itemgetter("q")), key=itemgetter("q"))
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
        if retries.dead_letter is not None and retries.dead_letter.target is None:
            # A record of another store asks for its list: an error would stop the whole sweep.
            retries = retries._replace(dead_letter=None)
        changes = _woken(Transitions(queue, state, retries), documents)
        if not await self._save_again(changes):
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
        await self._save_again(_woken(Transitions(queue, state, NO_RETRIES), found))
        return len(found)

    async def purge(self, queue: QueueRef, *, forget: bool = False) -> None:
        """End all messages and claims, or the queue's life, by one update; see the seam."""
        state = await self._queues.end_messages(key_of(queue), forget=forget)
        if state is not None:
            with suppress(PyMongoError):  # the messages have ended; the sweep deletes them
                await self._clear(state.key, state.birth, STEP)

    async def _clear(self, key: str, upto: int, limit: int) -> int:
        """Delete at most `limit` documents; remove the note when these were the last."""
        messages = self._connection.messages
        ended = {"q": key, "k": {"$lte": Int64(upto)}}
        found = await find_first(
            messages, ended, {"_id": 1}, order=["k"], limit=limit, hint="position"
        )
        if found:
            doomed = {"_id": {"$in": ids_of(found)}, **ended}
            await repeated(lambda: messages.delete_many(doomed, hint=BY_ID))
        if len(found) < limit:
            done = {"_id": key, "u": Int64(upto)}
            await self._connection.queues.update_one(done, {"$unset": {"u": True}}, hint=BY_ID)
        return len(found)

    async def _clear_all(self, limit: int) -> int:
        """Clear all queues that have the note `u`; answer how many documents were deleted."""
        queues, noted = self._connection.queues, {"u": {"$exists": True}}
        count = 0
        for document in await find_first(queues, noted, {"u": 1}, limit=limit, hint="unclear"):
            if count >= limit:
                break
            count += await self._clear(document["_id"], document["u"], limit - count)
        return count


def _woken(transitions: Transitions, documents: Sequence[Document]) -> list[Change]:
    """Messages, and what they are when their wait or lease ends."""
    changes = [Change(transitions.state.key, seen, dict(seen)) for seen in documents]
    for change in changes:
        transitions.wake(change.document)
    return changes
