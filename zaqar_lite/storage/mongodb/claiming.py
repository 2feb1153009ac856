"""Claims and pops: candidates by index, one guarded update, and a look at what it got.

Two callers may find the same candidates. The update takes only what is still claimable, so each
message goes to one of them, and each reads back by its own token what that was.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bson import Int64
from pymongo import UpdateMany, UpdateOne

from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.ids import new_claim_id
from zaqar_lite.domain.models import Claimed, DeadLetter, DelayMode, Message, QueueRef
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.documents import to_message
from zaqar_lite.storage.mongodb.errors import repeated
from zaqar_lite.storage.mongodb.indexes import BY_ID, Document
from zaqar_lite.storage.mongodb.placing import Moving, Placing
from zaqar_lite.storage.mongodb.queues import (
    CLAIMED,
    DELAYED,
    POPPED,
    READY,
    RECORD,
    Queues,
    QueueState,
)

POP_TIME_MS = 60_000
"""How long a popped message is kept for its caller to read; it is in no queue any more."""

_ROUNDS = 1_000
"""How often one call looks for candidates: each time others were faster, or all were exhausted."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Who claims and for how long; None for a pop."""

    ttl_ms: int
    grace_ms: int
    client_id: str


class Claiming:
    """Hand out ready messages; move the exhausted ones."""

    def __init__(self, connection: Connection, queues: Queues, placing: Placing) -> None:
        self._connection = connection
        self._queues = queues
        self._placing = placing

    async def take(
        self,
        ref: QueueRef,
        *,
        limit: int,
        terms: Terms | None,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None,
        version: int | None,
    ) -> Claimed:
        """Claim (with `terms`) or pop up to `limit` ready messages; see the seam."""
        if dead_letter is not None and dead_letter.target is None:
            raise Unsupported("The mongodb store keeps no failed messages; the embedded one does.")
        state = await self._queues.read(ref, version)
        if state is None:
            return Claimed(None)
        grip = _Grip(self._connection, state, terms, delay_mode, dead_letter)
        taken: list[Document] = []
        moved = 0
        for _ in range(_ROUNDS):
            room = limit - len(taken)
            candidates, rest = await self._candidates(state, delay_mode, room)
            wanted, exhausted = _divide(candidates, dead_letter)
            before = len(taken)
            if wanted or rest:
                taken = await grip.close(wanted, rest)
            moved += await self._bury(ref, grip, exhausted, dead_letter)
            everything = len(taken) - before == len(wanted)
            if len(taken) >= limit or (len(candidates) < room and everything):
                break
        if terms is None:
            await grip.finish_pop(taken)
            return Claimed(None, _views(taken, state.now), moved)
        if not taken:
            await grip.withdraw()
            return Claimed(None, (), moved)
        return Claimed(grip.token, _views(taken, grip.started_at), moved)

    async def _candidates(
        self, state: QueueState, delay_mode: DelayMode, room: int
    ) -> tuple[Sequence[Document], Sequence[Document]]:
        """The first `room` claimable messages, and what is due or has lapsed beside them."""
        finds = [
            self._connection.messages.find(
                query.filter, _BRIEF, sort=query.sort, limit=query.limit, batch_size=query.limit,
                hint=query.hint,
            ).to_list()
            for query in candidate_queries(state, delay_mode, room)
        ]  # fmt: skip
        found = {d["_id"]: d for answer in await asyncio.gather(*finds) for d in answer}
        in_order = sorted(found.values(), key=lambda d: (d["p"], d["k"]))
        return in_order[:room], [d for d in in_order[room:] if d["s"] != READY]

    async def _bury(
        self,
        ref: QueueRef,
        grip: "_Grip",
        exhausted: Sequence[Document],
        dead_letter: DeadLetter | None,
    ) -> int:
        """Move exhausted messages to the dead-letter queue, each in one guarded update.

        Between the update and the commit of the target's counter a letter is visible in neither
        queue. Should we die there, the note in the target's document makes the sweep commit it.
        """
        if not exhausted or dead_letter is None or dead_letter.target is None:
            return 0
        token = new_claim_id()
        target = await self._queues.announce_move(dead_letter.target, token)

        now = self._connection.now
        arrival = _arrival(now, ref, dead_letter, target.key)
        guard = {
            **grip.claimable,
            "n": {"$gte": dead_letter.max_claims},
        }

        async def take(letter: str, position: int) -> bool:
            result = await self._connection.messages.update_one(
                {"_id": letter, **guard},
                [{"$set": {**arrival, "k": {"$literal": Int64(position)}}}, {"$unset": "w"}],
                hint=BY_ID,
            )
            return result.matched_count == 1

        letters = [document["_id"] for document in exhausted]
        moving = Moving(self._connection, target.key, letters, take, token)
        await self._placing.let_in(target, moving)
        return len(moving.moved)


@dataclass(frozen=True, slots=True)
class Query:
    """One find, as it is sent and as the tests explain it."""

    filter: Document
    hint: str
    limit: int
    sort: list[tuple[str, int]] | None = None


_BRIEF = {"s": 1, "p": 1, "k": 1, "n": 1}


def candidate_queries(state: QueueState, delay_mode: DelayMode, room: int) -> Sequence[Query]:
    """Where claimable messages are: ready; lapsed and (on a delayed queue) due; or all delayed.

    Each reads one range of one index that holds nothing else, so that what is delayed or claimed
    costs a claim nothing.
    """
    live = {"q": state.key, "k": state.visible, "e": {"$gt": state.date}}
    waking = [CLAIMED] if delay_mode is DelayMode.IGNORE else [DELAYED, CLAIMED]
    queries = [
        Query({**live, "s": READY}, "ready", room, [("p", 1), ("k", 1)]),
        Query({**live, "s": {"$in": waking}, "w": {"$lte": state.date}}, "wake", MAX_EXAMINED),
    ]
    if delay_mode is DelayMode.EXPOSE:
        waits = {**live, "s": DELAYED, "w": {"$gt": state.date}}
        queries.append(Query(waits, "wake", room, [("w", 1)]))
    return queries


class _Grip:
    """One caller's hold on messages, by a token of its own."""

    def __init__(
        self,
        connection: Connection,
        state: QueueState,
        terms: Terms | None,
        delay_mode: DelayMode,
        dead_letter: DeadLetter | None,
    ) -> None:
        self.token = new_claim_id()
        self.started_at = state.now
        self._connection = connection
        self._state = state
        self._terms = terms
        self._dead_letter = dead_letter
        self._made_record = False
        lapsed = {"s": CLAIMED, "w": {"$lte": state.date}}
        delayed: Document = {"s": DELAYED}
        if delay_mode is DelayMode.HONOUR:
            delayed["w"] = {"$lte": state.date}
        free = [{"s": READY}, lapsed]
        if delay_mode is not DelayMode.IGNORE:
            free.append(delayed)
        self._exposes = delay_mode is DelayMode.EXPOSE
        self._reads_delay = delay_mode is not DelayMode.IGNORE
        self.claimable: Document = {
            "q": state.key,
            "k": {"$gt": Int64(state.birth)},
            "e": {"$gt": state.date},
            "$or": free,
        }

    async def close(self, wanted: Sequence[Document], rest: Sequence[Document]) -> list[Document]:
        """Take what is still free of `wanted`, make `rest` ready; read all that is held by now."""
        updates: list[UpdateMany | UpdateOne] = []
        if wanted:
            condition = {**_among(wanted), **self.claimable}
            if self._dead_letter is not None:
                condition["n"] = {"$lt": self._dead_letter.max_claims}
            updates.append(UpdateMany(condition, self._holding(), hint=BY_ID))
        if rest:
            updates.append(
                UpdateMany({**_among(rest), **self.claimable}, self._freeing(), hint=BY_ID)
            )
        if self._terms is not None and wanted and not self._made_record:
            updates.append(self._record(self._terms))
            self._made_record = True
        await repeated(lambda: self._connection.messages.bulk_write(updates, ordered=True))
        return await self._read()

    async def finish_pop(self, taken: Sequence[Document]) -> None:
        """Remove what was popped; it is nobody's any more, and without us the broom takes it."""
        if taken:
            await repeated(
                lambda: self._connection.messages.delete_many(
                    {**_among(taken), "q": self._state.key, "s": POPPED}, hint=BY_ID
                )
            )

    async def withdraw(self) -> None:
        """Remove the record of a claim that others left nothing for."""
        if self._made_record:
            await self._connection.messages.delete_one(
                {"_id": self.token, "q": self._state.key, "s": RECORD}, hint=BY_ID
            )

    async def _read(self) -> list[Document]:
        """Read what is held, in the order of claims; the record tells when it began."""
        held = POPPED if self._terms is None else CLAIMED
        cursor = self._connection.messages.find(
            {"q": self._state.key, "cid": self.token},
            None if self._reads_delay else {"d": 0},
            hint="claim",
            batch_size=MAX_EXAMINED,
        )
        found = await cursor.to_list()
        for document in found:
            if document["s"] == RECORD:
                self.started_at = int(document["c"])
            elif document["s"] == POPPED:
                document["e"] = document["w"]  # where the update has kept it
        return sorted(
            (d for d in found if d["s"] == held and int(d["e"]) > self.started_at),
            key=lambda d: (d["p"], d["k"]),
        )

    def _holding(self) -> list[Document]:
        """The update of what is taken; a message that expired meanwhile stays expired."""
        now = self._connection.now
        changes: dict[str, Any] = {"cid": self.token}
        if self._exposes:
            changes["d"] = exposed_delay(now)
        if self._terms is None:
            end = {"$add": [now, POP_TIME_MS]}
            return [{"$set": {**changes, "s": POPPED, "w": "$e", "e": end}}]
        ttl_ms, grace_ms = self._terms.ttl_ms, self._terms.grace_ms
        end = {"$add": [now, ttl_ms]}
        changes |= {
            "s": CLAIMED,
            "cu": {"$literal": self._terms.client_id},
            "w": end,
            "n": {"$add": ["$n", 1]},
            **raised_ttl(now, end, ttl_ms, grace_ms),
        }
        return [{"$set": changes}]

    def _freeing(self) -> list[Document]:
        changes: dict[str, Any] = {"s": READY}
        if self._exposes:
            changes["d"] = exposed_delay(self._connection.now)
        return [{"$set": changes}, {"$unset": "w"}]

    def _record(self, terms: Terms) -> UpdateOne:
        now = self._connection.now
        fields = {
            "s": RECORD,
            "cid": self.token,
            "u": {"$literal": terms.client_id},
            "t": Int64(terms.ttl_ms),
            "c": now,
            "e": {"$add": [now, terms.ttl_ms]},
            "g": Int64(self._state.birth),
        }
        return UpdateOne(
            {"_id": self.token, "q": self._state.key}, [{"$set": fields}], upsert=True, hint=BY_ID
        )


def raised_ttl(now: Document, end: Document, ttl_ms: int, grace_ms: int) -> Document:
    """The fields of a message that must not end before its claim does, at `end`."""
    ends_early = {"$and": [{"$gt": ["$e", now]}, {"$lt": ["$e", end]}]}
    raised = ttl_ms + grace_ms
    return {
        "t": {"$cond": [ends_early, Int64(raised), "$t"]},
        "e": {"$cond": [ends_early, {"$add": [now, raised]}, "$e"]},
    }


def _arrival(now: Document, source: QueueRef, dead_letter: DeadLetter, target: str) -> Document:
    """The fields of an exhausted message in its dead-letter queue, but for its position."""
    changes: Document = {
        "q": {"$literal": target},
        "s": READY,
        "o": {
            "source": {"$literal": source.name},
            "at": now,
            "n": "$n",
            "cid": {"$ifNull": ["$cid", None]},
            "cu": {"$ifNull": ["$cu", None]},
        },
    }
    if dead_letter.ttl_ms is not None:
        changes["t"] = Int64(dead_letter.ttl_ms)
        changes["e"] = {"$add": [now, dead_letter.ttl_ms]}
    return changes


def exposed_delay(now: Document) -> Document:
    """The delay of a message that is let out before its time: it is over now."""
    return {"$cond": [{"$eq": ["$s", DELAYED]}, {"$min": ["$d", now]}, "$d"]}


def _among(documents: Sequence[Document]) -> Document:
    return {"_id": {"$in": [document["_id"] for document in documents]}}


def _divide(
    candidates: Sequence[Document], dead_letter: DeadLetter | None
) -> tuple[list[Document], list[Document]]:
    """Tell the messages that may be handed out from the exhausted ones."""
    if dead_letter is None:
        return list(candidates), []
    most = dead_letter.max_claims
    return [d for d in candidates if d["n"] < most], [d for d in candidates if d["n"] >= most]


def _views(documents: Sequence[Document], now: int) -> list[Message]:
    return [to_message(document, now) for document in documents]
