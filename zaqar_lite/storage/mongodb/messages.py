"""The message store: each operation of the seam, by the parts of the driver."""

from collections.abc import Collection, Sequence
from typing import Any

from bson import Int64
from bson.datetime_ms import DatetimeMS
from pymongo import DeleteMany, ReturnDocument, UpdateMany, UpdateOne

from zaqar_lite.domain.errors import Conflict, Invalid, NotFound
from zaqar_lite.domain.ids import is_claim_id, is_message_id
from zaqar_lite.domain.models import (
    Capability,
    Claim,
    Claimed,
    Edit,
    Message,
    NewMessage,
    Page,
    Posted,
    QueueRef,
    Refusal,
    RefusalReason,
    Selection,
    Stats,
    StoreOptions,
    Swept,
    Take,
)
from zaqar_lite.storage.base import MessageStore, RetriesOf, no_retries
from zaqar_lite.storage.mongodb.claiming import Claiming, Terms, raised_ttl
from zaqar_lite.storage.mongodb.connection import Connection, read_all
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated, translated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.keys import Keys
from zaqar_lite.storage.mongodb.listing import Listing
from zaqar_lite.storage.mongodb.placing import Placing
from zaqar_lite.storage.mongodb.posting import Posting
from zaqar_lite.storage.mongodb.queues import (
    CLAIMED,
    DELAYED,
    LIVE_STATES,
    READY,
    RECORD,
    STAGED,
    Queues,
    key_of,
)
from zaqar_lite.storage.mongodb.staging import Staging
from zaqar_lite.storage.mongodb.sweeping import Sweeping

_ROUNDS = 10


class MongoMessageStore(MessageStore):
    """Messages and claims in MongoDB; shared by any number of processes."""

    capabilities = frozenset({Capability.EXCLUSIVE, Capability.DURABLE, Capability.SHARED})

    def __init__(self, connection: Connection, options: StoreOptions) -> None:
        self._connection = connection
        self._queues = Queues(connection)
        self._keys = Keys(connection, options.idempotency_window_ms)
        self._placing = Placing(connection, self._queues)
        self._staging = Staging(connection, self._queues, self._placing)
        self._posting = Posting(connection, self._queues, self._keys, self._staging, options)
        self._claiming = Claiming(connection, self._queues, self._placing)
        self._listing = Listing(connection, self._queues)
        self._sweeping = Sweeping(connection, self._queues, self._placing)

    async def open(self) -> None:
        """Connect, create and check the indexes; see the seam."""
        await self._connection.open(self)

    async def close(self) -> None:
        """Close the connections unless the other store uses them; see the seam."""
        await self._connection.close(self)

    async def ping(self) -> None:
        """Ask the server for its time; see the seam."""
        await self._connection.ping()

    async def post(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: str | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages; see the seam."""
        with translated():
            return await self._posting.post(
                queue, messages, client_id=client_id, batch_key=batch_key, version=version
            )

    async def list_messages(self, queue: QueueRef, selection: Selection) -> Page:
        """List messages; see the seam."""
        marker, until, limit = selection.marker, selection.until, selection.limit
        exclude_client_id, version = selection.exclude_client_id, selection.version
        include_claimed, include_delayed = selection.include_claimed, selection.include_delayed
        states = [READY, *[DELAYED] * include_delayed, *[CLAIMED] * include_claimed]
        with translated():
            return await self._listing.page(
                queue,
                marker=marker,
                until=until,
                limit=limit,
                exclude_client_id=exclude_client_id,
                states=states,
                version=version,
            )

    async def get_messages(
        self, queue: QueueRef, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id; see the seam."""
        with translated():
            return await self._listing.get(queue, ids)

    async def edit(self, queue: QueueRef, edit: Edit) -> Message:
        """Change a delayed message in one guarded update; see the seam."""
        message_id, body, version = edit.message_id, edit.body, edit.version
        ttl_ms, delay_ms = edit.ttl_ms, edit.delay_ms
        with translated():
            for _ in range(_ROUNDS):
                state = await self._queues.read(queue, version)
                if state is None or not is_message_id(message_id):
                    break
                live = {"_id": message_id, **state.live}
                guard: Document = {**live, "s": DELAYED, "w": {"$gt": state.date}}
                changes: Document = {} if body is None else {"b": body}
                due = None if delay_ms is None else DatetimeMS(state.now + delay_ms)
                end = None if ttl_ms is None else DatetimeMS(state.now + ttl_ms)
                if end is not None:
                    changes |= {"t": Int64(ttl_ms or 0), "e": end}
                if due is not None:
                    changes |= {"d": due, "w": due}
                if due is not None and end is None:
                    guard["e"] = {"$gt": state.date, "$gte": due}
                elif end is not None and due is None:
                    guard["w"] = {"$gt": state.date, "$lte": end}
                is_possible = due is None or end is None or due <= end
                edited = is_possible and await self._connection.messages.find_one_and_update(
                    guard, {"$set": changes}, return_document=ReturnDocument.AFTER, hint=BY_ID
                )
                if edited:
                    return to_message(edited, state.now)
                found = await self._connection.messages.find_one(live, hint=BY_ID)
                if found is None:
                    break
                if found["s"] != DELAYED or found["w"] <= state.date:
                    raise Conflict(f"Message {message_id} is not delayed (any more).")
                early = int(due or found["w"]) - int(end or found["e"])
                if early > 0:
                    raise Invalid(
                        f"Message {message_id} would expire {early} ms before its delay is over: "
                        "give a longer ttl or a shorter delay."
                    )
        raise NotFound(f"Message {message_id} does not exist.")

    async def delete(
        self, queue: QueueRef, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages: a look that refuses, then a delete with the same guard; see the seam."""
        wanted = [message_id for message_id in dict.fromkeys(ids) if is_message_id(message_id)]
        if not wanted:
            return ()
        among = {"_id": {"$in": wanted}, "q": key_of(queue)}
        with translated():
            if claim_ids is None:
                doomed = {**among, "s": {"$in": LIVE_STATES}}
                await repeated(lambda: self._connection.messages.delete_many(doomed, hint=BY_ID))
                return ()
            return await self._delete_checked(among, list(claim_ids))

    async def _delete_checked(self, among: Document, claim_ids: list[str]) -> Sequence[Refusal]:
        refused: list[Refusal] = []
        for _ in range(_ROUNDS):
            found = await read_all(
                self._connection.messages,
                [
                    {"$match": {**among, "s": {"$in": LIVE_STATES}}},
                    {"$project": {"s": 1, "w": 1, "e": 1, "cid": 1}},
                    {"$addFields": {"now": self._connection.now}},
                ],
                hint=BY_ID,
            )
            live = {d["_id"]: d for d in found if d["e"] > d["now"]}
            refused = [
                Refusal(key, reason)
                for key in among["_id"]["$in"]
                if key in live and (reason := _refusal(live[key], claim_ids)) is not None
            ]
            if refused or not live:
                break
            now = next(iter(live.values()))["now"]
            guard: Document = {"s": CLAIMED, "cid": {"$in": claim_ids}}
            if not claim_ids:
                lapsed = {"s": CLAIMED, "w": {"$lte": now}}
                guard = {"$or": [{"s": {"$in": [READY, DELAYED]}}, lapsed]}
            doomed = {**among, "_id": {"$in": list(live)}, **guard}
            result = await repeated(
                lambda: self._connection.messages.delete_many(doomed, hint=BY_ID)  # noqa: B023 - awaited here
            )
            if result.deleted_count == len(live):
                break
            # Somebody deleted, claimed or freed one in between: look again at what is left.
        return refused

    async def pop(self, queue: QueueRef, take: Take) -> Claimed:
        """Remove and hand out ready messages; see the seam."""
        limit, delay_mode, version = take.limit, take.delay_mode, take.version
        dead_letter = take.retries.dead_letter
        with translated():
            return await self._claiming.take(
                queue,
                limit=limit,
                terms=None,
                delay_mode=delay_mode,
                dead_letter=dead_letter,
                version=version,
            )

    async def claim(self, queue: QueueRef, take: Take) -> Claimed:
        """Hand out ready messages under a new claim; see the seam."""
        limit, ttl_ms, grace_ms, client_id = take.limit, take.ttl_ms, take.grace_ms, take.client_id
        delay_mode, dead_letter, version = take.delay_mode, take.retries.dead_letter, take.version
        with translated():
            return await self._claiming.take(
                queue,
                limit=limit,
                terms=Terms(ttl_ms, grace_ms, client_id),
                delay_mode=delay_mode,
                dead_letter=dead_letter,
                version=version,
            )

    async def get_claim(self, queue: QueueRef, claim_id: str, *, details: bool = False) -> Claim:
        """Read a claim's record and what it holds, by one index; see the seam."""
        with translated():
            found = await self._held(queue, claim_id)
        record = _live_record(found, claim_id)
        now = int(record["now"])
        held = [d for d in found if d["s"] == CLAIMED and d["w"] > d["now"] and d["e"] > d["now"]]
        return Claim(
            claim_id,
            record["t"],
            max(0, now - int(record["c"])),
            [to_message(document, now) for document in sorted(held, key=lambda d: d["k"])],
        )

    async def _held(self, queue: QueueRef, claim_id: str) -> list[Document]:
        if not is_claim_id(claim_id):
            return []
        return await read_all(
            self._connection.messages,
            [
                {"$match": {"q": key_of(queue), "cid": claim_id}},
                {"$addFields": {"now": self._connection.now}},
            ],
            hint="claim",
        )

    async def renew(self, queue: QueueRef, claim_id: str, *, ttl_ms: int, grace_ms: int) -> None:
        """Let a live claim, and what it holds, live on; see the seam.

        The record first: should we die in between, the messages lapse when they would have.
        """
        now = self._connection.now
        end = {"$add": [now, ttl_ms]}
        with translated():
            record = _live_record(await self._held(queue, claim_id), claim_id)
            key = key_of(queue)
            alive = {"_id": claim_id, "q": key, "s": RECORD, "e": {"$gt": record["now"]}}
            held = {"q": key, "cid": claim_id, "s": CLAIMED}
            updates: list[UpdateOne | UpdateMany] = [
                UpdateOne(alive, [{"$set": {"t": Int64(ttl_ms), "c": now, "e": end}}], hint=BY_ID),
                UpdateMany(
                    {**held, "w": {"$gt": record["now"]}},
                    [{"$set": {"w": end, **raised_ttl(now, end, ttl_ms, grace_ms)}}],
                    hint="claim",
                ),
            ]
            await repeated(lambda: self._connection.messages.bulk_write(updates, ordered=True))

    async def release(self, queue: QueueRef, claim_id: str, *, delay_ms: int = 0) -> None:
        """Free what a claim still holds, and end its record; see the seam."""
        if not is_claim_id(claim_id):
            return
        key = key_of(queue)
        updates: list[UpdateOne | UpdateMany] = [
            UpdateMany(
                {"q": key, "cid": claim_id, "s": CLAIMED},
                {"$set": {"s": READY}, "$unset": {"w": True}},
                hint="claim",
            ),
            UpdateOne(
                {"_id": claim_id, "q": key, "s": RECORD},
                [{"$set": {"e": self._connection.now}}],
                hint=BY_ID,
            ),
        ]
        with translated():
            await repeated(lambda: self._connection.messages.bulk_write(updates, ordered=True))

    async def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims there are now; see the seam."""
        with translated():
            state = await self._queues.read(queue)
            if state is not None:
                await self._remove(
                    {"q": state.key, "k": {"$lte": Int64(state.counter)}},
                    {"q": state.key, "s": RECORD, "c": {"$lte": state.date}},
                )

    async def drop(self, queue: QueueRef) -> None:
        """End the queue's life in one update of its document, then clear away; see the seam.

        What a crash leaves behind is below the birth of the next life, so nobody ever sees it.
        """
        with translated():
            state = await self._queues.end_life(key_of(queue))
            if state is not None:
                birth = Int64(state.birth)
                await self._remove(
                    {"q": state.key, "k": {"$lte": birth}},
                    {"q": state.key, "s": {"$in": [RECORD, STAGED]}, "g": {"$lt": birth}},
                )
                await self._keys.forget(state)

    async def _remove(self, messages: Document, records: Document) -> None:
        doomed: list[Any] = [
            DeleteMany(messages, hint="position"),
            DeleteMany(records, hint="state"),
        ]
        await repeated(lambda: self._connection.messages.bulk_write(doomed, ordered=False))

    async def stats(self, queue: QueueRef) -> Stats:
        """Count the live messages; see the seam."""
        with translated():
            return await self._listing.stats(queue)

    async def split(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut the live messages into ranges; see the seam."""
        with translated():
            return await self._listing.split(queue, count)

    async def expose(self, queue: QueueRef, limit: int) -> int:
        """Make delayed messages ready; see the seam."""
        with translated():
            return await self._sweeping.expose(queue, limit)

    async def sweep(self, limit: int, retries_of: RetriesOf = no_retries) -> Swept:
        """Tidy up in bounded steps; see the seam."""
        with translated():
            return await self._sweeping.sweep(limit)


def _live_record(found: Sequence[Document], claim_id: str) -> Document:
    """The record among what carries a claim's id.

    Raises:
        NotFound: it is not there or its time is over.
    """
    for document in found:
        if document["s"] == RECORD and document["e"] > document["now"]:
            return document
    raise NotFound(f"Claim {claim_id} does not exist or has expired.")


def _refusal(document: Document, claim_ids: Collection[str]) -> RefusalReason | None:
    """Why a message may not be deleted by these claims; None when it may."""
    if document["s"] == CLAIMED and document["w"] > document["now"]:
        return None if document["cid"] in claim_ids else RefusalReason.CLAIMED
    return RefusalReason.NOT_CLAIMED if claim_ids else None
