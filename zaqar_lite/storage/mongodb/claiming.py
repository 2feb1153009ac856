"""Claims and pops: candidates by index, one guarded update, and a look at what it got.

Two callers may find the same candidates. The update takes only what is still claimable, so each
message goes to one of them, and each reads back by its own token what that was.

A step examines at most MAX_EXAMINED entries of a kind, whatever they turn out to be: what has
expired is deleted and what is exhausted is moved as it is met, so each call makes progress.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pymongo.errors import PyMongoError

from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.models import Claimed, DelayMode, QueueRef, Take
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.grip import Grip, LooseEnds
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.letters import Letters
from zaqar_lite.storage.mongodb.queues import CLAIMED, DELAYED, POPPED, READY, Queues, QueueState

_BUDGET = 4 * MAX_EXAMINED
"""Entries that one call examines before it answers what it has."""

_FIRST_WINDOW, _GROWTH = 20, 10
"""How many ready entries the first step looks at, at least, and how that grows."""
_CROWD = 8
"""A caller whom others got ahead of chooses among so many times what it still wants."""


class Claiming:
    """Hand out ready messages; move the exhausted ones."""

    def __init__(self, connection: Connection, queues: Queues) -> None:
        self._connection = connection
        self._queues = queues
        self._letters = Letters(connection, queues)
        self.loose_ends = LooseEnds(connection)

    async def take(self, ref: QueueRef, take: Take, *, held: int) -> Claimed:
        """Claim (CLAIMED) or pop (POPPED) up to `limit` ready messages; see the seam."""
        dead_letter, limit = take.retries.dead_letter, take.limit
        if dead_letter is not None and dead_letter.target is None:
            raise Unsupported("The mongodb store keeps no failed messages; the embedded one does.")
        state = await self._queues.read(ref, take.version)
        if state is None:
            return Claimed(None)
        search = _Search(state, take)
        grip = Grip(self._connection, state, take, held)
        taken: list[Document] = []
        moved = 0
        while not search.is_over:
            found = search.sort_out(await self._find(search), limit - len(taken))
            try:
                if found.wanted or found.rest:
                    taken = await grip.close(found.wanted, found.rest)
            except PyMongoError:
                self.loose_ends.undo(grip)  # what nobody is told of is nobody's
                raise
            await self._delete_expired(state, found.expired)
            if found.exhausted and dead_letter is not None:
                moved += await self._letters.move(ref, grip.claimable, found.exhausted, dead_letter)
            search.go_on(found, len(taken))
        claim_id = grip.token if taken and held == CLAIMED else None
        if held == POPPED:
            await self._finish_pop(grip, taken)
        messages = [to_message(document, grip.started_at) for document in taken]
        return Claimed(claim_id, messages, moved, search.has_more and len(taken) < limit)

    async def _find(self, search: "_Search") -> list[Document]:
        """The first candidates of each kind."""
        queries = candidate_queries(search.state, search.delay_mode, search.window)
        finds = [
            self._connection.messages.find(
                query.filter, _BRIEF, sort=query.sort, limit=query.limit, batch_size=query.limit,
                hint=query.hint,
            ).to_list()
            for query in queries
        ]  # fmt: skip
        answers = await asyncio.gather(*finds)
        search.was_cut = any(
            len(answer) == query.limit for query, answer in zip(queries, answers, strict=True)
        )
        found = {document["_id"]: document for answer in answers for document in answer}
        return sorted(found.values(), key=lambda document: document["k"])

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

    def __init__(self, state: QueueState, take: Take) -> None:
        self.state = state
        self.delay_mode = take.delay_mode
        self.window = min(max(take.limit, _FIRST_WINDOW), MAX_EXAMINED)
        self.was_cut = False
        self.has_more = True
        self._limit = take.limit
        self._dead_letter = take.retries.dead_letter
        self._taken = 0
        self._is_crowded = False
        self._examined = 0

    @property
    def is_over(self) -> bool:
        """Tell whether all is taken that is wanted or there, or may be looked for."""
        return self._taken >= self._limit or not self.has_more or self._examined >= _BUDGET

    def sort_out(self, candidates: Sequence[Document], room: int) -> _Found:
        """Tell what to do with candidates, in their order, until `room` is used up."""
        self._examined += max(1, len(candidates))
        found = _Found()
        for document in candidates:
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

    def go_on(self, found: _Found, taken: int) -> None:
        """Learn from a step: others were faster, something was in the way, or that was all."""
        got, self._taken = taken - self._taken, taken
        room = self._limit - taken
        self._is_crowded = got < len(found.wanted)
        self.has_more = self.was_cut or self._is_crowded
        if self._is_crowded:
            self.window = min(_CROWD * room, MAX_EXAMINED)
        else:
            self.window = min(_GROWTH * self.window, MAX_EXAMINED)


@dataclass(frozen=True, slots=True)
class Query:
    """One find, as it is sent and as the tests explain it."""

    filter: Document
    hint: str
    limit: int
    sort: list[tuple[str, int]]


_BRIEF = {"s": 1, "k": 1, "n": 1, "e": 1}


def candidate_queries(state: QueueState, delay_mode: DelayMode, window: int) -> Sequence[Query]:
    """Where claimable messages are: ready; lapsed and (on a delayed queue) due; or all delayed.

    Each reads one range of one index that holds nothing else, so that what is delayed or claimed
    costs a claim nothing.
    """
    queue = {"q": state.key, "k": state.visible}
    waking = [CLAIMED] if delay_mode is DelayMode.IGNORE else [DELAYED, CLAIMED]
    by_time = [("w", 1), ("k", 1)]
    due = {**queue, "s": {"$in": waking}, "w": {"$lte": state.date}}
    queries = [
        Query({**queue, "s": READY}, "live", window, [("k", 1)]),
        Query(due, "waking", MAX_EXAMINED, by_time),
    ]
    if delay_mode is DelayMode.EXPOSE:
        waits = {**queue, "s": DELAYED, "w": {"$gt": state.date}}
        queries.append(Query(waits, "waking", window, by_time))
    return queries


def _ids(documents: Sequence[Document]) -> list[str]:
    return [document["_id"] for document in documents]
