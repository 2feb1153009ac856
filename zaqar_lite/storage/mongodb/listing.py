"""Reading: pages, messages by id, counts, and what is ready. Nothing here changes anything."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from bson import Int64
from pymongo.asynchronous.collection import AsyncCollection

from zaqar_lite.domain.ids import Marker, is_message_id
from zaqar_lite.domain.limits import fitting
from zaqar_lite.domain.models import Capability, ListQuery, Message, Page, QueueRef, Stats
from zaqar_lite.storage.base import MAX_EXAMINED, MessageStore
from zaqar_lite.storage.mongodb import states
from zaqar_lite.storage.mongodb.connection import Connection, Session, read_all
from zaqar_lite.storage.mongodb.documents import NO_ATTEMPTS, to_message
from zaqar_lite.storage.mongodb.errors import translated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.queues import Queues, QueueState, key_of, queue_of
from zaqar_lite.storage.mongodb.readiness import POLL_INTERVAL_MS, Readiness
from zaqar_lite.storage.store import Connected
from zaqar_lite.storage.watchers import Listener, Watch

_FEW = 20
"""A longer page reads the sizes of its messages before their bodies."""


class Listing(Connected[Connection], MessageStore):
    """Read the messages of a queue, in order of position; any number of processes may."""

    poll_interval_ms = POLL_INTERVAL_MS
    capabilities = frozenset(
        {Capability.ATOMIC_BATCH, Capability.EXCLUSIVE, Capability.DURABLE, Capability.SHARED}
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._queues = Queues(connection)
        self._readiness = Readiness(connection)

    async def close(self) -> None:
        """Close the connections if nobody else uses them; see the seam."""
        await self._readiness.close()
        await super().close()

    async def watch(self, queue: QueueRef, listener: Listener) -> Watch:
        """Begin to announce a queue; see the seam."""
        end = await self._readiness.watch(queue, listener)
        return Watch(partial(self.next_due, queue), end)

    async def list_messages(self, queue: QueueRef, selection: ListQuery) -> Page:
        """Read one page of a selection; see the seam."""
        wanted = {states.READY}
        wanted |= {states.DELAYED} if selection.include_delayed else set()
        wanted |= {states.CLAIMED, states.PARKED} if selection.include_claimed else set()
        own_id = selection.exclude_client_id
        async with self._connection.one_view() as session:
            after = await self._position(queue, selection.marker, session) or 0
            last = await self._position(queue, selection.until, session)
            filtered_after = None if own_id is None else after
            state, bound = await self._read_state(queue, selection.version, session, filtered_after)
            if state is None:
                return Page((), None)
            residual: Document = {"e": {"$gt": state.date}, "s": {"$in": states.LIVE}}
            if own_id is not None:
                residual["u"] = {"$ne": own_id}
            low = max(state.birth, after)
            high = state.counter if last is None else min(state.counter, last)
            details, group = selection.details, selection.group
            query = PageQuery(state, selection.limit, wanted, residual, details, group, session)
            return await self._first_page(query, low, high, bound)

    async def _read_state(
        self, queue: QueueRef, version: int | None, session: Session, filtered_after: int | None
    ) -> tuple[QueueState | None, int | None]:
        """The queue's state and, in one command with it, how far a filtered step may read."""
        key, counters = key_of(queue), self._connection.counters
        pipeline = self._queues.pipeline(key)
        if filtered_after is None:
            found = await read_all(counters, pipeline, hint=BY_ID, session=session)
        else:
            union = {"$unionWith": {"coll": counters.name, "pipeline": pipeline}}
            counted, stages = self._connection.counted, [*_bound(key, filtered_after), union]
            found = await read_all(counted, stages, hint="position", session=session)
        bound = found.pop(0)["bound"] if found and "bound" in found[0] else None
        return self._queues.checked(found, queue, version), bound

    async def _first_page(self, query: "PageQuery", low: int, high: int, bound: int | None) -> Page:
        """Find the first page between two positions that has a message; an empty one at the end.

        A filter by client may pass over many messages, so one step examines at most MAX_EXAMINED
        entries: those up to `bound`, and then as many again.
        """
        while low < high:
            end = high if bound is None else min(high, bound)
            found = await self._page_between(query, low, end) if low < end else []
            if found:
                messages = [to_message(document, query.state.now) for document in found]
                return Page(messages, messages[-1].position)
            low = max(low, end)
            if low < high:
                stages, listed = _bound(query.state.key, low), self._connection.listed
                bounds = await read_all(listed, stages, hint="position", session=query.session)
                bound = bounds[0]["bound"] if bounds else None
        return Page((), None)

    async def _page_between(self, query: "PageQuery", low: int, high: int) -> list[Document]:
        """The first messages of the page between two positions, up to MAX_PAGE_BYTES."""
        if query.limit > _FEW:
            sizes = await self._read_between(query, low, high, {"k": 1, "z": 1})
            if not sizes:
                return []
            query = query._replace(limit=min(len(sizes), _fitting(sizes)))
        shown: Document = {"l": 0} if query.details else NO_ATTEMPTS
        found = await self._read_between(query, low, high, shown)
        return found[: _fitting(found)]

    async def _read_between(
        self, query: "PageQuery", low: int, high: int, shown: Document
    ) -> list[Document]:
        """Read what a projection shows of the first messages between two positions."""
        hint, first, *others = query.pipelines({"$gt": Int64(low), "$lte": Int64(high)})
        listed = self._connection.listed
        unions = [{"$unionWith": {"coll": listed.name, "pipeline": other}} for other in others]
        pipeline = [*first, *unions, {"$project": shown}]
        found = await read_all(listed, pipeline, hint=hint, session=query.session)
        # By id, because what wakes between two of the branches is in both.
        once = {document["_id"]: document for document in found}
        return sorted(once.values(), key=lambda document: document["k"])[: query.limit]

    async def _position(
        self, queue: QueueRef, marker: Marker | None, session: Session
    ) -> int | None:
        """The position that a marker means in this queue."""
        if marker is None or marker.message_id is None:
            return None if marker is None else marker.position
        found = await self._connection.listed.find_one(
            {"_id": marker.message_id, "q": key_of(queue)}, {"k": 1}, hint=BY_ID, session=session
        )
        return marker.position if found is None else found["k"]

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch live messages by id; see the seam."""
        wanted = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        state = await self._queues.read(queue) if wanted else None
        if state is None:
            return ()
        cursor = self._connection.listed.find(
            {"_id": {"$in": wanted}, **state.live},
            None if details else NO_ATTEMPTS,
            hint=BY_ID,
        )
        found = {document["_id"]: document for document in await cursor.to_list()}
        return [to_message(found[key], state.now) for key in wanted if key in found]

    async def next_due(self, queue: QueueRef) -> int | None:
        """When a message next becomes ready by time; see the seam."""
        state = await self._queues.read(queue)
        if state is None:
            return None
        there = {"q": state.key, "k": state.visible}
        wakes_at = await _first_wake(self._connection.messages, there, {"$exists": True})
        return None if wakes_at is None else max(0, wakes_at - state.now)

    async def stats(self, queue: QueueRef, *, ranges: int = 0) -> Stats:
        """Count the live messages; see the seam."""
        state = await self._queues.read(queue)
        if state is None:
            return Stats()
        live = state.live
        is_awake = {"$and": [{"$in": ["$s", states.WAITING]}, {"$lte": ["$w", state.date]}]}
        counting = read_all(  # from the index alone: it has every field that is named here
            self._connection.listed,
            [
                {"$match": live},
                {
                    "$group": {
                        "_id": {"$cond": [is_awake, states.READY, "$s"]},
                        "n": {"$sum": 1},
                        "z": {"$sum": "$z"},
                    }
                },
            ],
            hint="sized",
        )
        counts, oldest, newest = await asyncio.gather(
            counting, self._end(live, 1), self._end(live, -1)
        )
        by_state = {document["_id"]: document["n"] for document in counts}
        since = None
        if by_state.get(states.READY):
            is_ready = oldest is not None and oldest["s"] == states.READY
            since = await self._ready_since(state, oldest if is_ready else None)
        return Stats(
            by_state.get(states.READY, 0),
            by_state.get(states.DELAYED, 0) + by_state.get(states.PARKED, 0),
            by_state.get(states.CLAIMED, 0),
            None if oldest is None else to_message(oldest, state.now),
            None if newest is None else to_message(newest, state.now),
            since,
            sum(document["z"] for document in counts),
            await self._cuts(live, ranges) if ranges else (),
        )

    async def _ready_since(self, state: QueueState, first: Document | None) -> int | None:
        """Since when the first ready message is ready; `first` is that message where known."""
        found = first or await self._connection.listed.find_one(
            {**state.live, "s": states.READY}, {"k": 1, "d": 1}, sort=[("k", 1)], hint="sized"
        )
        if found is not None:
            since = max(int(found["k"]) // 1000, int(found.get("d", 0)))
            return min(state.now, since)
        return await _first_wake(self._connection.listed, state.live, {"$lte": state.date})

    async def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        """Name the queues that were ever used and not deleted; see the seam."""
        with translated():
            async for document in self._connection.listed_queues.find({}, {"_id": 1}):
                yield queue_of(document["_id"])

    async def _end(self, live: Document, direction: int) -> Document | None:
        return await self._connection.listed.find_one(
            live, NO_ATTEMPTS, sort=[("k", direction)], hint="position"
        )

    async def _cuts(self, live: Document, ranges: int) -> Sequence[int]:
        """Cut the live messages into ranges, from an index alone."""
        buckets = {"groupBy": "$k", "buckets": ranges, "output": {"last": {"$max": "$k"}}}
        stages = [{"$match": live}, {"$project": {"_id": 0, "k": 1}}]
        cursor = await self._connection.listed.aggregate(
            [*stages, {"$bucketAuto": buckets}], hint="sized", allowDiskUse=True
        )
        return [bucket["last"] for bucket in await cursor.to_list()]


class PageQuery(NamedTuple):
    """What a page shows: messages in the states `wanted` that match the filter `residual`."""

    state: QueueState
    limit: int
    wanted: Collection[int]
    residual: Document
    details: bool
    group: str | None
    session: Session

    def pipelines(self, positions: Document) -> Sequence[Any]:
        """The hint of the first pipeline, and the pipelines whose union is the page.

        A group is one range of its index, and a page of all states one range of the index of
        positions. Any other page has one range for each state that is wanted, and a range of those
        messages in other states that are ready by now, because they are due or have lapsed. The
        latter is read first, so that a message that becomes ready meanwhile is found later.
        """
        key, end = self.state.key, [{"$match": self.residual}, {"$limit": self.limit}]
        by_position = {"$sort": {"k": 1}}
        if self.group is not None:
            awake = [{"s": {"$in": sorted(self.wanted)}}, {"w": {"$lte": self.state.date}}]
            members = {"q": key, "g": self.group, "k": positions}
            return "group", [{"$match": members}, by_position, {"$match": {"$or": awake}}, *end]
        asleep = sorted(set(states.LIVE) - set(self.wanted))
        if not asleep:
            return "position", [{"$match": {"q": key, "k": positions}}, by_position, *end]
        waking = {"q": key, "s": {"$in": asleep}, "w": {"$lte": self.state.date}, "k": positions}
        pipelines = [[{"$match": waking}, by_position, *end]]
        for state in sorted(self.wanted):
            match = {"$match": {"q": key, "s": state, "k": positions}}
            pipelines.append([match, by_position, *end])
        return "waking", *pipelines


async def _first_wake(
    collection: AsyncCollection[Document], among: Document, when: Document
) -> int | None:
    """When the first of the messages that become ready by time does."""
    waiting = {**among, "s": {"$in": states.WAITING}, "w": when}
    found = await collection.find_one(waiting, {"w": 1}, sort=[("w", 1)], hint="waking")
    return None if found is None else int(found["w"])


def _fitting(documents: Sequence[Document]) -> int:
    return fitting(document["z"] for document in documents)


def _bound(key: str, after: int) -> list[Document]:
    """The position of the entry that is MAX_EXAMINED behind `after`: from the index alone."""
    return [
        {"$match": {"q": key, "k": {"$gt": Int64(after)}}},
        {"$sort": {"k": 1}},
        {"$skip": MAX_EXAMINED - 1},
        {"$limit": 1},
        {"$project": {"_id": 0, "bound": "$k"}},
    ]
