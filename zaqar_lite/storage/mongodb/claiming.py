"""Claims and pops: read candidates, decide on each, store what is still as it was read.

Two callers may read the same candidates. The store changes only what nobody has changed since, so
each message goes to one of them, and each reads by its own token which messages it got.

A step examines at most MAX_EXAMINED entries of a kind, whatever they turn out to be: what has
expired is deleted, a lapsed lease is ended, and what is exhausted is moved as it is met, so each
call makes progress.
"""

import random
import time
from collections.abc import Sequence

import pymongo
from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo.errors import AutoReconnect, PyMongoError

from zaqar_lite.domain.attempts import MAX_CLAIMS
from zaqar_lite.domain.errors import QueueChanged, Unavailable
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.limits import MAX_PAGE_BYTES, fitting
from zaqar_lite.domain.models import Claimed, ClaimRequest, DelayMode, QueueRef
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.changing import Change, Changing
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import NO_ATTEMPTS, to_message
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import BRIEF, QueueState, ids_of, key_of, reading
from zaqar_lite.storage.mongodb.transactions import repeated
from zaqar_lite.storage.mongodb.transitions import POP_TIME_MS, Transitions

REMOVAL_SECONDS = 15
"""How long a pop waits for its delete: well within POP_TIME_MS."""
_MOST_CLEANUPS = 1_000

_BUDGET = 4 * MAX_EXAMINED
"""Entries that one call examines before it answers what it has."""
_FIRST_WINDOW, _GROWTH = 20, 10
"""How many ready entries the first step reads at least, and by what factor that grows."""
_MARGIN_MS = 500
"""How much later than the server's estimated time a step looks for due messages."""
_CROWD = 16
"""A caller that lost a race chooses at random among this many times the messages it still wants."""
_MOST_DUE = MAX_EXAMINED // 4
"""How many due messages a step reads."""


class Claiming(Changing):
    """Hand out ready messages; move the exhausted ones."""

    _ahead_ms = 0
    """By how much the server's clock is ahead of this process's."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._unremoved: list[Document] = []
        """Filters of what pops of this process have handed out and could not delete."""

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Hand out ready messages under a new claim, or for good; see the seam."""
        search = _Search(queue, request)
        began = time.monotonic()
        await self._take(search)
        if request.removes and search.taken:
            if time.monotonic() - began > POP_TIME_MS / 1000 - REMOVAL_SECONDS:
                raise Unavailable("MongoDB was too slow for a pop; the messages come back.")
            try:
                await self._remove(search)
            except PyMongoError:  # the caller has them all the same; the sweep removes them
                if len(self._unremoved) < _MOST_CLEANUPS:
                    self._unremoved.append(search.popped)
        return search.answer()

    async def _take(self, search: "_Search") -> None:
        while not search.is_over:
            try:
                await self._take_step(search)
            except (PyMongoError, QueueChanged):
                if not search.taken:
                    raise
                search.has_more = True
                return  # answer what is held, even though the rest failed or has another policy

    async def _take_step(self, search: "_Search") -> None:
        """Take, make ready, delete or move the next candidates, and read what is held then.

        The server's time is known only from the answer, so the command looks for due messages by
        an estimate that is a little late, and those that turn out not to be due are left out.
        """
        guess = self._connection.local_ms + self._ahead_ms + _MARGIN_MS
        found, state = await self._queues.find_with_state(
            search.queue,
            search.stages(guess, self._connection.messages.name),
            "waking",
            search.request.version,
        )
        if state is None:
            search.has_more = False
            return
        self._ahead_ms = state.now - self._connection.local_ms
        found = [one for one in found if one["s"] == states.READY or one["w"] <= state.date]
        wanted, others, letters = search.decide(found, state)
        changes = wanted + others
        try:
            stored = await self._save(changes)
        except AutoReconnect:  # it may have been carried out
            stored = await self._save_again(changes) or 1
        if wanted and stored:
            await self._read_held(search)
        lost = stored < len(changes)
        moved = await self._save_again(letters)
        search.moved += moved
        search.note_step(found, late=state.now > guess, lost=lost or moved < len(letters))

    async def _read_held(self, search: "_Search") -> None:
        """Read what the call holds by now, in order, but for what it held for too short a time."""
        unread = {} if search.request.details else dict(NO_ATTEMPTS)
        if search.request.delay_mode is DelayMode.IGNORE:
            unread["d"] = 0
        stages = reading(search.held, unread or {"l": 0})
        found = await self._queues.find_with_state(search.queue, stages, "claim")
        if found.state is not None:
            search.now = found.state.now
            held = [one for one in found.live if one["w"] > found.state.date]
            search.taken = sorted(held, key=lambda document: document["k"])

    async def _remove(self, search: "_Search") -> None:
        """Delete what was popped, within the time that it is held for.

        Where that time was over before the delete arrived, others have some of the messages by now:
        those are not in `taken` any more.
        """
        messages = self._connection.messages
        popped = search.popped
        with pymongo.timeout(REMOVAL_SECONDS):
            result = await repeated(lambda: messages.delete_many(popped, hint=BY_ID))
            if result.deleted_count < len(search.taken):
                named = {"_id": popped["_id"]}
                left = ids_of(await messages.find(named, {"_id": 1}, hint=BY_ID).to_list())
                search.taken = [one for one in search.taken if one["_id"] not in left]

    async def _finish_pops(self) -> int:
        """Delete what pops of this process could not; answer how many messages that were."""
        count = 0
        while self._unremoved:
            popped = self._unremoved[0]
            result = await self._connection.messages.delete_many(popped, hint=BY_ID)
            count += result.deleted_count
            del self._unremoved[0]
        return count


class _Search:
    """What one call has found so far under its token, and what it reads next.

    It holds messages as CLAIMED, for the ttl of the claim, or as POPPED, for as long as it takes.
    """

    def __init__(self, queue: QueueRef, request: ClaimRequest) -> None:
        self.queue = queue
        self.request = request
        self.token = new_claim_id()
        self.taken: list[Document] = []
        self.moved = 0
        self.has_more = True
        self.now = 0
        state = states.POPPED if request.removes else states.CLAIMED
        self.held: Document = {"q": key_of(queue), "cid": self.token, "s": state}
        """The filter of what the call holds."""
        self._window = min(max(request.limit, _FIRST_WINDOW), MAX_EXAMINED)
        self._birth = 0
        self._examined = 0
        self._lost_race = False

    @property
    def size(self) -> int:
        """How many bytes the bodies have that the call holds."""
        return sum(document["z"] for document in self.taken)

    @property
    def is_over(self) -> bool:
        """Whether the call has all that it wants or all there is, or has used up its budget."""
        is_enough = len(self.taken) >= self.request.limit or self.size >= MAX_PAGE_BYTES
        return is_enough or not self.has_more or self._examined >= _BUDGET

    @property
    def popped(self) -> Document:
        """The filter of what the caller is given: it may hold more, if a later read failed."""
        return {"_id": {"$in": ids_of(self.taken)}, **self.held}

    def answer(self) -> Claimed:
        """What the caller is told."""
        messages = [to_message(document, self.now) for document in self.taken]
        has_more = self.has_more and len(messages) < self.request.limit
        claim_id = self.token if messages and not self.request.removes else None
        return Claimed(claim_id, messages, self.moved, has_more)

    def stages(self, guess: int, collection: str) -> list[Document]:
        """The aggregation of a step: what is due at `guess`, and then what is ready.

        Each part reads a range of an index that holds nothing else, so messages that are delayed or
        claimed cost a claim nothing. What becomes ready meanwhile is found in the second part.
        """
        waiting = [states.CLAIMED, states.PARKED]
        if self.request.delay_mode is DelayMode.HONOUR:
            waiting.append(states.DELAYED)
        key, after = key_of(self.queue), {"$gt": Int64(self._birth)}
        due = {"q": key, "s": {"$in": waiting}, "w": {"$lte": DatetimeMS(guess)}, "k": after}
        ready = [
            {"$match": {"q": key, "s": states.READY, "k": after}},
            {"$sort": {"k": 1}},
            {"$limit": self._window},
            {"$project": {**BRIEF, **NO_ATTEMPTS}},
        ]
        return [
            {"$match": due},
            {"$sort": {"w": 1, "k": 1}},
            {"$limit": _MOST_DUE},
            {"$project": BRIEF},
            {"$unionWith": {"coll": collection, "pipeline": ready}},
        ]

    def decide(
        self, found: Sequence[Document], state: QueueState
    ) -> tuple[list[Change], list[Change], list[Change]]:
        """Decide on candidates, in order of position: those to take, other changes, the letters."""
        steps = Transitions(self.queue, state, self.request.retries)
        letter, room = self.request.retries.dead_letter, self.request.limit - len(self.taken)
        takes: list[Change] = []
        others: list[Change] = []
        once = {one["_id"]: one for one in found if one["k"] > state.birth}
        for seen in sorted(once.values(), key=lambda document: document["k"]):
            change = Change(state.key, seen, document := dict(seen))
            if document["e"] <= state.date:
                document["s"] = states.GONE
            else:
                steps.wake(document)
            is_ready = document["s"] == states.READY and change.target == state.key
            if is_ready and (self._lost_race or len(takes) < room):
                if letter is not None and document["n"] >= letter.max_claims:
                    steps.bury(document, letter, MAX_CLAIMS)
                else:
                    takes.append(change)
                    continue
            if document != seen:
                others.append(change)
        if len(takes) > room:
            first = random.randrange(len(takes) - room + 1)  # noqa: S311 - no secret
            takes = takes[first : first + room]
        takes = takes[: fitting((change.seen["z"] for change in takes), self.size)]
        for change in takes:
            steps.take(change.document, self.request, self.token)
        self._birth = state.birth
        letters = [change for change in others if change.target != state.key]
        letters.sort(key=lambda change: change.seen["s"] != states.CLAIMED)  # the lapsed first
        return takes, [change for change in others if change not in letters], letters

    def note_step(self, found: Sequence[Document], *, late: bool, lost: bool) -> None:
        """Note whether there may be more; decide how many entries the next step reads."""
        ready = sum(document["s"] == states.READY for document in found)
        was_cut = ready >= self._window or len(found) - ready >= _MOST_DUE
        was_cut = was_cut or self.size >= MAX_PAGE_BYTES
        self._examined += max(1, len(found))
        self._lost_race = lost
        self.has_more = was_cut or lost or late
        window = _CROWD * (self.request.limit - len(self.taken)) if lost else _GROWTH * self._window
        self._window = min(window, MAX_EXAMINED)
