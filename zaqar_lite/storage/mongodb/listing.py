"""Reading: pages, messages by id, counts and ranges. Nothing here changes anything."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from bson import Int64
from pymongo.asynchronous.client_session import AsyncClientSession

from zaqar_lite.domain.ids import Marker, is_message_id
from zaqar_lite.domain.models import Message, Page, QueueRef, Stats
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import (
    CLAIMED,
    DELAYED,
    LIVE_STATES,
    READY,
    Queues,
    QueueState,
    key_of,
)

_FINE_RANGES = 10_000
"""Ranges of positions that are counted to cut a queue; exact below so many positions."""


class Listing:
    """Read the messages of a queue, in order of position."""

    def __init__(self, connection: Connection, queues: Queues) -> None:
        self._connection = connection
        self._queues = queues

    async def page(
        self,
        ref: QueueRef,
        *,
        marker: Marker | None,
        until: Marker | None,
        limit: int,
        exclude_client_id: str | None,
        states: Collection[int],
        version: int | None,
    ) -> Page:
        """Read one page of the messages in these states; see the seam."""
        async with self._connection.one_view() as session:
            after = await self._position(ref, marker, 0, session)
            last = await self._position(ref, until, None, session)
            state = await self._queues.read(ref, version, session=session)
            if state is None:
                return Page((), None)
            residual: Document = {"e": {"$gt": state.date}, "s": {"$in": LIVE_STATES}}
            if exclude_client_id is not None:
                residual["u"] = {"$ne": exclude_client_id}
            low = max(state.birth, after or 0)
            high = state.counter if last is None else min(state.counter, last)
            query = PageQuery(state, limit, states, residual)
            return await self._search(query, low, high, session)

    async def _search(
        self, query: "PageQuery", low: int, high: int, session: AsyncClientSession | None
    ) -> Page:
        """Find the first page with a message between two positions; without one, the end.

        A filter by client may pass by a lot. Positions are dense, so a window of positions bounds
        how much one step looks at.
        """
        is_filtered = "u" in query.residual
        while low < high:
            end = min(high, low + MAX_EXAMINED) if is_filtered else high
            found = await self._step(query, low, end, session)
            if found:
                messages = [to_message(document, query.state.now) for document in found]
                return Page(messages, messages[-1].position)
            low = end if end == high else await self._next(query.state, end, session)
        return Page((), None)

    async def _step(
        self, query: "PageQuery", low: int, high: int, session: AsyncClientSession | None
    ) -> list[Document]:
        """The first messages of the page between two positions."""
        hint, first, *others = query.pipelines({"$gt": Int64(low), "$lte": Int64(high)})
        name = self._connection.listed.name
        unions = [{"$unionWith": {"coll": name, "pipeline": other}} for other in others]
        found = await read_all(
            self._connection.listed, [*first, *unions], hint=hint, session=session
        )
        # By id, because what wakes between two of the branches is in both.
        once = {document["_id"]: document for document in found}
        return sorted(once.values(), key=lambda document: document["k"])[: query.limit]

    async def _next(
        self, state: QueueState, position: int, session: AsyncClientSession | None
    ) -> int:
        """The place right before the first entry after `position`."""
        found = await self._connection.listed.find_one(
            {"q": state.key, "k": {"$gt": Int64(position), "$lte": Int64(state.counter)}},
            {"_id": 0, "k": 1},
            sort=[("k", 1)],
            hint="position",
            session=session,
        )
        return state.counter if found is None else int(found["k"]) - 1

    async def _position(
        self,
        ref: QueueRef,
        marker: Marker | None,
        default: int | None,
        session: AsyncClientSession | None,
    ) -> int | None:
        """The position that a marker means in this queue."""
        if marker is None:
            return default
        if marker.message_id is None:
            return marker.position
        found = await self._connection.listed.find_one(
            {"_id": marker.message_id, "q": key_of(ref)}, {"k": 1}, hint=BY_ID, session=session
        )
        return marker.position if found is None else found["k"]

    async def get(self, ref: QueueRef, ids: Iterable[str]) -> Sequence[Message]:
        """Fetch live messages by id; see the seam."""
        wanted = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        state = await self._queues.read(ref) if wanted else None
        if state is None:
            return ()
        cursor = self._connection.listed.find(
            {"_id": {"$in": wanted}, **state.live},
            hint=BY_ID,
        )
        found = {document["_id"]: document for document in await cursor.to_list()}
        return [to_message(found[key], state.now) for key in wanted if key in found]

    async def stats(self, ref: QueueRef) -> Stats:
        """Count the live messages; costs O(messages), as the store keeps no counts."""
        state = await self._queues.read(ref)
        if state is None:
            return Stats()
        live = state.live
        is_awake = {"$and": [{"$in": ["$s", [DELAYED, CLAIMED]]}, {"$lte": ["$w", state.date]}]}
        counting = read_all(
            self._connection.listed,
            [
                {"$match": live},
                {"$group": {"_id": {"$cond": [is_awake, READY, "$s"]}, "n": {"$sum": 1}}},
            ],
            hint="position",
        )
        counts, oldest, newest = await asyncio.gather(
            counting, self._end(live, 1), self._end(live, -1)
        )
        by_state = {document["_id"]: document["n"] for document in counts}
        return Stats(
            by_state.get(READY, 0),
            by_state.get(DELAYED, 0),
            by_state.get(CLAIMED, 0),
            None if oldest is None else to_message(oldest, state.now),
            None if newest is None else to_message(newest, state.now),
        )

    async def _end(self, live: Document, direction: int) -> Document | None:
        return await self._connection.listed.find_one(
            live, sort=[("k", direction)], hint="position"
        )

    async def split(self, ref: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam.

        Counts by fine ranges of positions in the server, so a queue of any length costs one pass
        there and a small answer.
        """
        state = await self._queues.read(ref)
        if state is None:
            return ()
        live = state.live
        oldest = await self._end(live, 1)
        if oldest is None:
            return ()
        width = max(1, -(-(state.counter - oldest["k"] + 1) // max(_FINE_RANGES, 20 * count)))
        number = {"$floor": {"$divide": [{"$subtract": ["$k", oldest["k"]]}, width]}}
        fine = await read_all(
            self._connection.listed,
            [
                {"$match": live},
                {"$group": {"_id": number, "n": {"$sum": 1}, "last": {"$max": "$k"}}},
                {"$sort": {"_id": 1}},
            ],
            hint="position",
        )
        return _cut([(entry["n"], entry["last"]) for entry in fine], count)


class PageQuery(NamedTuple):
    """What a page asks for: messages in `states` that the filter `residual` lets pass."""

    state: QueueState
    limit: int
    states: Collection[int]
    residual: Document

    def pipelines(self, positions: Document) -> Sequence[Any]:
        """The hint of the first pipeline, and the pipelines whose union is the page.

        With all states it is one range of the index of positions. Else it is a range for each
        state that is wanted, after what is due or has lapsed of the others: that is ready too.
        First what wakes and then what is ready: a message changes in that direction.
        """
        key, end = self.state.key, [{"$match": self.residual}, {"$limit": self.limit}]
        by_position = {"$sort": {"k": 1}}
        asleep = sorted(set(LIVE_STATES) - set(self.states))
        if not asleep:
            return "position", [{"$match": {"q": key, "k": positions}}, by_position, *end]
        waking = {"q": key, "s": {"$in": asleep}, "w": {"$lte": self.state.date}, "k": positions}
        pipelines = [[{"$match": waking}, by_position, *end]]
        for wanted in sorted(self.states):
            match = {"$match": {"q": key, "s": wanted, "k": positions}}
            pipelines.append([match, by_position, *end])
        return "wake", *pipelines


def _cut(fine: Sequence[tuple[int, int]], count: int) -> Sequence[int]:
    """Join fine ranges (size, last position) to at most `count` of about equal size."""
    total = sum(size for size, _ in fine)
    ends: list[int] = []
    passed = 0
    for size, last in fine:
        passed += size
        if passed * min(count, total) >= (len(ends) + 1) * total:
            ends.append(last)
    return ends
