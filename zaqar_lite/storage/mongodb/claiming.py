"""Claims and pops: find candidates by index, take them by one guarded update, read what it took.

Two callers may find the same candidates. The update takes only what is still claimable, so each
message goes to one of them, and each reads by its own token which messages it got.

A step examines at most MAX_EXAMINED entries of a kind, whatever they turn out to be: what has
expired is deleted, a lapsed lease is ended, and what is exhausted is moved as it is met, so each
call makes progress.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bson.datetime_ms import DatetimeMS
from pymongo.errors import PyMongoError

from zaqar_lite.domain.models import Claimed, ClaimRequest, DelayMode, QueueRef
from zaqar_lite.domain.refusals import no_failed_list
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import find_first
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated, translate
from zaqar_lite.storage.mongodb.guarded_updates import Change
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.leases import LeaseHandle
from zaqar_lite.storage.mongodb.parts import StorePart
from zaqar_lite.storage.mongodb.queues import BRIEF, QueueState, ids_of, key_of
from zaqar_lite.storage.mongodb.transitions import Transitions

_BUDGET = 4 * MAX_EXAMINED
"""Entries that one call examines before it answers what it has."""

_FIRST_WINDOW, _GROWTH = 20, 10
"""How many ready entries the first step reads at least, and by what factor that grows."""
_MARGIN_MS = 500
"""How much later than the server's estimated time the first look for due messages reads."""
_CROWD = 16
"""A caller that lost a race chooses at random among this many times the messages it still wants."""
_MOST_DUE = MAX_EXAMINED // 4
"""How many due messages a step reads: each lapse is an update of its own."""


class Claiming(StorePart):
    """Hand out ready messages; move the exhausted ones."""

    _ahead_ms = 0
    """By how much the server's clock is ahead of this process's."""

    async def claim(self, queue: QueueRef, request: ClaimRequest) -> Claimed:
        """Hand out ready messages under a new claim, or for good; see the seam."""
        held = states.POPPED if request.removes else states.CLAIMED
        dead_letter = request.retries.dead_letter
        if dead_letter is not None and dead_letter.target is None:
            raise no_failed_list("MongoDB")
        search = await self._begin_search(queue, request)
        if search is None:
            return Claimed(None)
        handle = LeaseHandle(self._connection, search.state, request, held)
        moved = 0
        while not search.is_over:
            try:
                moved += await self._take_step(search, handle)
            except PyMongoError:
                if not handle.taken:
                    raise
                search.has_more = True
                break  # answer what is held, even though the rest failed
        if held == states.POPPED and handle.taken:
            try:
                await handle.remove()
            except PyMongoError:  # the caller has them all the same
                self._cleanups.add(handle, was_answered=True)
        messages = [to_message(document, handle.started_at) for document in handle.taken]
        claim_id = handle.token if messages and held == states.CLAIMED else None
        return Claimed(claim_id, messages, moved, search.has_more and len(messages) < request.limit)

    async def _begin_search(self, queue: QueueRef, request: ClaimRequest) -> "_Search | None":
        """Read the queue's state, and in the same command which messages are due by now.

        The server's time is known only from the answer, so the command uses an estimate that is a
        little late, and messages that turn out not to be due yet are left out. Where the estimate
        was too early, the first step looks for due messages itself.
        """
        guess = self._connection.local_ms + self._ahead_ms + _MARGIN_MS
        states = _due_states(request.delay_mode)
        due = {"q": key_of(queue), "s": {"$in": states}, "w": {"$lte": DatetimeMS(guess)}}
        found, state = await self._queues.find_with_state(
            queue,
            [
                {"$match": due},
                {"$sort": {"w": 1, "k": 1}},
                {"$limit": _MOST_DUE},
                {"$project": BRIEF},
            ],
            "waking",
            request.version,
        )
        if state is None:
            return None
        self._ahead_ms = state.now - self._connection.local_ms
        search = _Search(Transitions(queue, state, request.retries), request)
        if state.now <= guess:
            search.begin_with(found)
        return search

    async def _take_step(self, search: "_Search", handle: LeaseHandle) -> int:
        """Take, free, delete or move the next candidates; answer how many were moved."""
        found = await self._candidates(search)
        lapsed = [document for document in found if document["s"] == states.CLAIMED]
        ended, moved = await self._decide_all(search, lapsed, Transitions.lapse)
        ready = [
            each for each in ended if each["s"] == states.READY and each["q"] == search.state.key
        ]
        found = [each for each in found if each["s"] != states.CLAIMED] + ready
        sorted_out = search.sort_out(found, len(lapsed))
        if sorted_out.wanted or sorted_out.due:
            try:
                await handle.acquire(sorted_out.wanted, sorted_out.due)
            except PyMongoError as exc:
                self._cleanups.add(handle, was_answered=False)
                raise translate(exc) from exc
        search.note_step(sorted_out, len(handle.taken), lost_race=len(ended) < len(lapsed))
        await self._delete_expired(search.state, sorted_out.expired)
        _, exhausted = await self._decide_all(search, sorted_out.exhausted, Transitions.exhaust)
        return moved + exhausted

    async def _decide_all(
        self,
        search: "_Search",
        seen: Sequence[Document],
        decide: Callable[[Transitions, Document], None],
    ) -> tuple[list[Document], int]:
        """Apply `decide` to messages and store the result; answer the messages, how many moved.

        Answers no messages when another caller changed one of them: the next step reads them again.
        """
        documents = [dict(document) for document in seen]
        for document in documents:
            decide(search.transitions, document)
        key = search.state.key
        changes = [Change(key, *pair) for pair in zip(seen, documents, strict=True)]
        if await self._updates.write(changes) < len(changes):
            return [], 0
        return documents, sum(change.target != key for change in changes)

    async def _candidates(self, search: "_Search") -> list[Document]:
        """The first candidates of each kind."""
        queries = search.queries()
        finds = [
            find_first(
                self._connection.messages,
                query.filter,
                query.projection,
                order=query.order,
                limit=query.limit,
                hint=query.hint,
            )
            for query in queries
        ]
        return search.merge(queries, await asyncio.gather(*finds))

    async def _delete_expired(self, state: QueueState, expired: Sequence[Document]) -> None:
        """Delete what has expired: the TTL index would, but only once a minute."""
        if expired:
            doomed = {"_id": {"$in": ids_of(expired)}, "q": state.key, "e": {"$lte": state.date}}
            await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))


@dataclass(slots=True)
class _SortedOut:
    """The candidates of one step: to hand out, to make ready, to delete, and to move."""

    wanted: list[Document] = field(default_factory=list)
    due: list[Document] = field(default_factory=list)
    expired: list[Document] = field(default_factory=list)
    exhausted: list[Document] = field(default_factory=list)


class _Search:
    """What one call has found so far, and what it reads next."""

    def __init__(self, transitions: Transitions, request: ClaimRequest) -> None:
        self.transitions = transitions
        self.state = transitions.state
        self.has_more = True
        self._delay_mode = request.delay_mode
        self._limit = request.limit
        self._dead_letter = request.retries.dead_letter
        self._window = min(max(request.limit, _FIRST_WINDOW), MAX_EXAMINED)
        self._due: list[Document] | None = None
        self._was_cut = False
        self._taken = 0
        self._lost_race = False
        self._more_are_due = True
        self._examined = 0

    def begin_with(self, found: Sequence[Document]) -> None:
        """Let the first step use these messages instead of looking for due ones itself."""
        self._due = [
            document
            for document in found
            if document["w"] <= self.state.date and document["k"] > self.state.birth
        ]
        self._more_are_due = len(found) == _MOST_DUE

    def queries(self) -> Sequence["Query"]:
        """What the next step reads."""
        queries = candidate_queries(self.state, self._delay_mode, self._window)
        is_known = self._due is not None or not self._more_are_due
        return [query for query in queries if not (is_known and query.name == "due")]

    def merge(
        self, queries: Sequence["Query"], answers: Sequence[Sequence[Document]]
    ) -> list[Document]:
        """The candidates of a step; notes whether there are more of a kind."""
        cut = {
            query.name
            for query, answer in zip(queries, answers, strict=True)
            if len(answer) == query.limit
        }
        if self._due is None:
            self._more_are_due = "due" in cut
        self._was_cut = bool(cut) or self._more_are_due
        found = {document["_id"]: document for answer in answers for document in answer}
        found |= {document["_id"]: document for document in self._due or ()}
        self._due = None
        return list(found.values())

    @property
    def is_over(self) -> bool:
        """Whether the call has all that it wants or all there is, or has used up its budget."""
        return self._taken >= self._limit or not self.has_more or self._examined >= _BUDGET

    def sort_out(self, candidates: Sequence[Document], lapsed: int) -> _SortedOut:
        """Sort candidates, in order of position, by what is to be done with them."""
        room = self._limit - self._taken
        self._examined += max(1, len(candidates), lapsed)
        found = _SortedOut()
        for document in sorted(candidates, key=lambda document: document["k"]):
            if document["e"] <= self.state.date:
                found.expired.append(document)
            elif self._lost_race or len(found.wanted) < room:
                is_exhausted = (
                    self._dead_letter is not None and document["n"] >= self._dead_letter.max_claims
                )
                (found.exhausted if is_exhausted else found.wanted).append(document)
            elif document["s"] != states.READY:
                found.due.append(document)
        if len(found.wanted) > room:
            first = random.randrange(len(found.wanted) - room + 1)  # noqa: S311 - no secret
            found.wanted = found.wanted[first : first + room]
        return found

    def note_step(self, found: _SortedOut, taken: int, *, lost_race: bool) -> None:
        """Note how many messages a step got; decide how many entries the next one reads."""
        got, self._taken = taken - self._taken, taken
        self._lost_race = lost_race or got < len(found.wanted)
        self.has_more = self._was_cut or self._lost_race
        self._more_are_due = self._more_are_due or lost_race
        window = _CROWD * (self._limit - taken) if self._lost_race else _GROWTH * self._window
        self._window = min(window, MAX_EXAMINED)


@dataclass(frozen=True, slots=True)
class Query:
    """One find for candidates: those that are ready, or those that are due."""

    name: str
    filter: Document
    hint: str
    limit: int
    order: Sequence[str]
    projection: Document


_READY_FIELDS = {"s": 1, "k": 1, "n": 1, "e": 1, "cid": 1, "cu": 1}
"""The projection of ready messages; the last claim is for a dead letter's origin."""


def candidate_queries(state: QueueState, delay_mode: DelayMode, window: int) -> Sequence[Query]:
    """Where claimable messages are: ready, lapsed, and due on a delayed queue.

    Each query reads a range of an index that holds nothing else, so messages that are delayed or
    claimed cost a claim nothing.
    """
    queue = {"q": state.key, "k": state.visible}
    due = {**queue, "s": {"$in": _due_states(delay_mode)}, "w": {"$lte": state.date}}
    return [
        Query("ready", {**queue, "s": states.READY}, "live", window, ["k"], _READY_FIELDS),
        Query("due", due, "waking", _MOST_DUE, ["w", "k"], BRIEF),
    ]


def _due_states(delay_mode: DelayMode) -> list[int]:
    """The states of what becomes ready by time."""
    return [states.CLAIMED, states.PARKED] + (
        [] if delay_mode is DelayMode.IGNORE else [states.DELAYED]
    )
