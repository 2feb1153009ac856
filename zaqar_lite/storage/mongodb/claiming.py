"""Claims and pops: candidates by index, one guarded update, and a look at what it got.

Two callers may find the same candidates. The update takes only what is still claimable, so each
message goes to one of them, and each reads back by its own token what that was.

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

from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef, Take
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated, translate
from zaqar_lite.storage.mongodb.grip import Grip, LooseEnds
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import (
    BRIEF,
    CLAIMED,
    DELAYED,
    PARKED,
    POPPED,
    READY,
    Queues,
    QueueState,
    key_of,
)
from zaqar_lite.storage.mongodb.rewriting import Change, Rewriting
from zaqar_lite.storage.mongodb.verdicts import Verdicts

_BUDGET = 4 * MAX_EXAMINED
"""Entries that one call examines before it answers what it has."""

_FIRST_WINDOW, _GROWTH = 20, 10
"""How many ready entries the first step looks at, at least, and how that grows."""
_MARGIN_MS = 500
"""How much later than it probably is a look for what wakes assumes it to be."""
_CROWD = 16
"""A caller whom others got ahead of chooses among so many times what it still wants."""


class Claiming:
    """Hand out ready messages; move the exhausted ones."""

    def __init__(self, connection: Connection, queues: Queues, rewriting: Rewriting) -> None:
        self._connection = connection
        self._queues = queues
        self._rewriting = rewriting
        self._ahead_ms = 0  # by how much the server's clock is ahead of this process's
        self.loose_ends = LooseEnds(connection)

    async def take(self, ref: QueueRef, take: Take, *, held: int) -> Claimed:
        """Claim (CLAIMED) or pop (POPPED) up to `limit` ready messages; see the seam."""
        dead_letter = take.retries.dead_letter
        if dead_letter is not None and dead_letter.target is None:
            raise Unsupported("The mongodb store keeps no failed messages; the embedded one does.")
        search = await self._begin(ref, take)
        if search is None:
            return Claimed(None)
        grip = Grip(self._connection, search.state, take, held)
        moved = 0
        while not search.is_over:
            try:
                moved += await self._step(search, grip)
            except PyMongoError:
                if not grip.taken:
                    raise
                search.has_more = True
                break  # what is held is answered, whatever became of the rest
        taken = grip.taken
        if held == POPPED:
            await self._finish_pop(grip, taken)
        messages = [to_message(document, grip.started_at) for document in taken]
        claim_id = grip.token if taken and held == CLAIMED else None
        return Claimed(claim_id, messages, moved, search.has_more and len(taken) < take.limit)

    async def _begin(self, ref: QueueRef, take: Take) -> "_Search | None":
        """Read the queue's state, and in the same command what wakes: by a guess at the time.

        What the server's time then proves to be still asleep is left out. A guess that was too
        early is made good by a look of its own.
        """
        guess = self._connection.local_ms + self._ahead_ms + _MARGIN_MS
        states = _waking(take.delay_mode)
        asleep = {"q": key_of(ref), "s": {"$in": states}, "w": {"$lte": DatetimeMS(guess)}}
        found, state = await self._queues.look_for(
            ref,
            [
                {"$match": asleep},
                {"$sort": {"w": 1, "k": 1}},
                {"$limit": _most_waking()},
                {"$project": BRIEF},
            ],
            "waking",
            take.version,
        )
        if state is None:
            return None
        self._ahead_ms = state.now - self._connection.local_ms
        search = _Search(Verdicts(ref, state, take.retries), take)
        if state.now <= guess:
            search.look_at(found)
        return search

    async def _step(self, search: "_Search", grip: Grip) -> int:
        """Take, free, delete or move the next candidates; answer how many were moved."""
        found = await self._find(search)
        lapsed = [document for document in found if document["s"] == CLAIMED]
        ended, moved = await self._rewrite(search, lapsed, Verdicts.lapse)
        ready = [each for each in ended if each["s"] == READY and each["q"] == search.state.key]
        found = [each for each in found if each["s"] != CLAIMED] + ready
        sorted_out = search.sort_out(found, len(lapsed))
        if sorted_out.wanted or sorted_out.rest:
            try:
                await grip.close(sorted_out.wanted, sorted_out.rest)
            except PyMongoError as exc:
                self.loose_ends.undo(grip)  # what nobody is told of is nobody's
                raise translate(exc) from exc
        search.go_on(sorted_out, len(grip.taken), is_crowded=len(ended) < len(lapsed))
        await self._delete_expired(search.state, sorted_out.expired)
        _, exhausted = await self._rewrite(search, sorted_out.exhausted, Verdicts.exhaust)
        return moved + exhausted

    async def _rewrite(
        self,
        search: "_Search",
        seen: Sequence[Document],
        decide: Callable[[Verdicts, Document], None],
    ) -> tuple[list[Document], int]:
        """Decide on messages and store it; answer how they are now, and how many were moved.

        Nothing when others were at them too: the next step finds what they have left.
        """
        documents = [dict(document) for document in seen]
        for document in documents:
            decide(search.verdicts, document)
        key = search.state.key
        changes = [Change(key, *pair) for pair in zip(seen, documents, strict=True)]
        if await self._rewriting.write(changes) < len(changes):
            return [], 0
        return documents, sum(change.target != key for change in changes)

    async def _find(self, search: "_Search") -> list[Document]:
        """The first candidates of each kind."""
        queries = search.queries()
        finds = [
            self._connection.messages.find(
                query.filter, query.projection, sort=query.sort, limit=query.limit,
                batch_size=query.limit, hint=query.hint,
            ).to_list()
            for query in queries
        ]  # fmt: skip
        answers = await asyncio.gather(*finds)
        return search.merge(queries, answers)

    async def _delete_expired(self, state: QueueState, expired: Sequence[Document]) -> None:
        """Help the broom, which comes once a minute: what is in our way is gone for readers."""
        if expired:
            doomed = {"_id": {"$in": _ids(expired)}, "q": state.key, "e": {"$lte": state.date}}
            await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))

    async def _finish_pop(self, grip: Grip, taken: Sequence[Document]) -> None:
        """Remove what was popped: its caller has it, whatever becomes of this."""
        if taken:
            try:
                await grip.remove(_ids(taken))
            except PyMongoError:
                self.loose_ends.remove(grip)


@dataclass(slots=True)
class _Found:
    """Candidates of one step: to be handed out, made ready, deleted, and moved."""

    wanted: list[Document] = field(default_factory=list)
    rest: list[Document] = field(default_factory=list)
    expired: list[Document] = field(default_factory=list)
    exhausted: list[Document] = field(default_factory=list)


class _Search:
    """How far one call has come, and where it looks next."""

    def __init__(self, verdicts: Verdicts, take: Take) -> None:
        self.verdicts = verdicts
        self.state = verdicts.state
        self.has_more = True
        self._delay_mode = take.delay_mode
        self._limit = take.limit
        self._dead_letter = take.retries.dead_letter
        self._window = min(max(take.limit, _FIRST_WINDOW), MAX_EXAMINED)
        self._awake: list[Document] | None = None
        self._was_cut = False
        self._taken = 0
        self._is_crowded = False
        self._wakes_more = True
        self._examined = 0

    def look_at(self, waking: Sequence[Document]) -> None:
        """Take what wakes from here, in the first step, instead of looking for it."""
        self._awake = [
            document
            for document in waking
            if document["w"] <= self.state.date and document["k"] > self.state.birth
        ]
        self._wakes_more = len(waking) == _most_waking()

    def queries(self) -> Sequence["Query"]:
        """What the next step asks for."""
        queries = candidate_queries(self.state, self._delay_mode, self._window)
        is_known = self._awake is not None or not self._wakes_more
        return [query for query in queries if not (is_known and query.name == "waking")]

    def merge(
        self, queries: Sequence["Query"], answers: Sequence[Sequence[Document]]
    ) -> list[Document]:
        """The candidates of a step; notes whether there are more of a kind."""
        cut = {
            query.name
            for query, answer in zip(queries, answers, strict=True)
            if len(answer) == query.limit
        }
        if self._awake is None:
            self._wakes_more = "waking" in cut
        self._was_cut = bool(cut) or self._wakes_more
        found = {document["_id"]: document for answer in answers for document in answer}
        found |= {document["_id"]: document for document in self._awake or ()}
        self._awake = None
        return list(found.values())

    @property
    def is_over(self) -> bool:
        """Tell whether all is taken that is wanted or there, or may be looked for."""
        return self._taken >= self._limit or not self.has_more or self._examined >= _BUDGET

    def sort_out(self, candidates: Sequence[Document], lapsed: int) -> _Found:
        """Tell what to do with candidates, in their order, until there is no more room."""
        room = self._limit - self._taken
        self._examined += max(1, len(candidates), lapsed)
        found = _Found()
        for document in sorted(candidates, key=lambda document: document["k"]):
            if document["e"] <= self.state.date:
                found.expired.append(document)
            elif self._is_crowded or len(found.wanted) < room:
                is_exhausted = (
                    self._dead_letter is not None and document["n"] >= self._dead_letter.max_claims
                )
                (found.exhausted if is_exhausted else found.wanted).append(document)
            elif document["s"] != READY:
                found.rest.append(document)
        if len(found.wanted) > room:
            first = random.randrange(len(found.wanted) - room + 1)  # noqa: S311 - no secret
            found.wanted = found.wanted[first : first + room]
        return found

    def go_on(self, found: _Found, taken: int, *, is_crowded: bool) -> None:
        """Learn from a step: others were faster, something was in the way, or that was all."""
        got, self._taken = taken - self._taken, taken
        room = self._limit - taken
        self._is_crowded = is_crowded or got < len(found.wanted)
        self.has_more = self._was_cut or self._is_crowded
        self._wakes_more = self._wakes_more or is_crowded
        if self._is_crowded:
            self._window = min(_CROWD * room, MAX_EXAMINED)
        else:
            self._window = min(_GROWTH * self._window, MAX_EXAMINED)


@dataclass(frozen=True, slots=True)
class Query:
    """One find for candidates: those that are ready, those that wake, or those that wait."""

    name: str
    filter: Document
    hint: str
    limit: int
    sort: list[tuple[str, int]]
    projection: Document


_READY = {"s": 1, "k": 1, "n": 1, "e": 1, "cid": 1, "cu": 1}
"""The projection of what is ready: what tells of its last claim is for its letter."""


def candidate_queries(state: QueueState, delay_mode: DelayMode, window: int) -> Sequence[Query]:
    """Where claimable messages are: ready; lapsed and (on a delayed queue) due; or all delayed.

    Each reads one range of one index that holds nothing else, so that what is delayed or claimed
    costs a claim nothing.
    """
    queue = {"q": state.key, "k": state.visible}
    by_time = [("w", 1), ("k", 1)]
    due = {**queue, "s": {"$in": _waking(delay_mode)}, "w": {"$lte": state.date}}
    queries = [
        Query("ready", {**queue, "s": READY}, "live", window, [("k", 1)], _READY),
        Query("waking", due, "waking", _most_waking(), by_time, BRIEF),
    ]
    if delay_mode is DelayMode.EXPOSE:
        waits = {**queue, "s": DELAYED, "w": {"$gt": state.date}}
        queries.append(Query("waiting", waits, "waking", window, by_time, BRIEF))
    return queries


def _most_waking() -> int:
    """How much of what wakes a step looks at: each lapse is an update of its own."""
    return MAX_EXAMINED // 4


def _waking(delay_mode: DelayMode) -> list[int]:
    """The states of what becomes ready by time."""
    return [CLAIMED, PARKED] + ([] if delay_mode is DelayMode.IGNORE else [DELAYED])


def _ids(documents: Sequence[Document]) -> list[str]:
    return [document["_id"] for document in documents]
