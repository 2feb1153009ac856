"""Reading the metadata log: to route messages of other writers, and to restore lost pages.

Messages that another writer published are routed as the service would have done. In the queue that
a message was published to it has the log's visible-at and retention. A queue that receives it by a
filter uses its own default delay and default ttl, or the log's retention if it has no ttl. Each
queue uses its own priority. A message that names no queue is offered to the filters of all
projects. A message that no queue receives is kept until its retention ends. Two kinds of messages
are refused, named in the server's log and kept in the same way: those whose payload can't be handed
out, because it is a reference or lost, and those whose payload is no JSON, because one would make
the whole answer invalid.

A message's metadata is deleted in the batch in which its last queue removes it. So metadata that no
queue holds, and that is no garbage of a purge, belongs to a message whose page is lost. The message
is put back in its place, with its claim, its attempts and the rest of its delay, where these can be
read. Changes by an edit, an exposure or an extended lease are lost, because only the page had them.
A dead letter returns to the queue that it was posted to, for the same reason. A message that went
to several queues is put back in each that may have lost it, even one that had already removed it:
the log does not tell which of them still had it. Its copies have its id then, and
neither claim nor attempts.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import apsw

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import Filter, Headers, Rules, parse_filter, parse_rules
from zaqar_lite.domain.ids import MAX_POSITION
from zaqar_lite.domain.metadata import FILTER, PRIORITY
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRef
from zaqar_lite.storage.opendata.format import CodecError, keys, records
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import INSERT_ENTRY, Loading
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import DELAYED, LEASED, READY

logger = logging.getLogger(__name__)
_CHUNK = 1_000
_LONGEST_S = 0xFFFF_FFFF
"""The retention, in seconds, of what is to be kept for ever: 136 years, the longest there is."""


class Logged(NamedTuple):
    """A message of the metadata log, as it is in the table `logged`."""

    number: int
    received: int
    visible: int
    retention_s: int
    queue: str | None
    client: str | None
    headers: str | None

    @property
    def deadline(self) -> int:
        """When its retention ends; 0 seconds are for ever."""
        if not self.retention_s:
            return MAX_POSITION
        return max(0, min(self.received + self.retention_s * 1000, MAX_POSITION))


class _Receiver(NamedTuple):
    """A queue with its filter, priorities, default ttl and default delay, and its version."""

    queue: QueueRef
    version: int
    matches: Filter | None
    priority: Rules | None
    ttl_ms: int | None
    delay_ms: int

    def receives(self, headers: Headers) -> bool:
        try:
            return self.matches is not None and self.matches(headers)
        except Invalid as exc:
            logger.warning("a message was not copied into %s: %s", self.queue, exc)
            return False

    def priority_of(self, headers: Headers) -> int:
        try:
            found = None if self.priority is None else self.priority(headers)
        except Invalid as exc:
            logger.warning("a message has the default priority in %s: %s", self.queue, exc)
            found = None
        return DEFAULT_PRIORITY if found is None else found


class Arrival(NamedTuple):
    """A message as it comes to a queue."""

    receiver: _Receiver
    priority: int
    ttl_ms: int
    due: int


class Router:
    """Finds the queues of logged messages; parses each queue's filter once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._known: dict[QueueRef, _Receiver] = {}
        self._filtered: list[_Receiver] = [
            self._receiver(QueueRef(project, name))
            for project, name in connection.execute(
                "SELECT project, name FROM queue WHERE has_filter = 1 ORDER BY project, name"
            )
        ]

    def arrivals(self, logged: Logged) -> list[Arrival]:
        """How a message comes to each of its queues.

        These are the queue it was published to and those whose filter matches.
        """
        headers = {} if logged.headers is None else json.loads(logged.headers)
        ref = None
        with suppress(CodecError):
            ref = None if logged.queue is None else keys.read_queue_id(logged.queue.encode())
        retention = (logged.retention_s or _LONGEST_S) * 1000
        found = []
        if ref is not None:
            headers[records.QUEUE_HEADER] = ref.name
            due = logged.visible if logged.visible != logged.received else 0
            own = self._receiver(ref)
            found.append(Arrival(own, own.priority_of(headers), retention, due))
        for one in self._filtered:
            if one.queue == ref or (ref is not None and one.queue.project != ref.project):
                continue
            if one.receives(headers):
                due = logged.received + one.delay_ms if one.delay_ms else 0
                ttl_ms = one.ttl_ms or retention
                found.append(Arrival(one, one.priority_of(headers), ttl_ms, due))
        return found

    def _receiver(self, ref: QueueRef) -> _Receiver:
        known = self._known.get(ref)
        if known is None:
            row = self._connection.execute(
                "SELECT version, metadata FROM queue WHERE project = ? AND name = ?", ref
            ).fetchone()
            version, text = row or (0, "{}")
            known = self._known[ref] = _read_receiver(ref, version, json.loads(text))
        return known


def _read_receiver(ref: QueueRef, version: int, metadata: Mapping[str, Any]) -> _Receiver:
    text, rules = metadata.get(FILTER), metadata.get(PRIORITY)
    try:
        matches = parse_filter(text) if isinstance(text, str) else None
        priority = parse_rules(rules) if isinstance(rules, str) else None
    except Invalid as exc:
        logger.warning("the filter and the priorities of %s are not used: %s", ref, exc)
        matches = priority = None
    ttl, delay = metadata.get("_default_message_ttl"), metadata.get("_default_message_delay")
    return _Receiver(
        ref,
        version,
        matches,
        priority,
        ttl * 1000 if isinstance(ttl, int) else None,
        delay * 1000 if isinstance(delay, int) else 0,
    )


async def replay(db: Database, loading: Loading) -> None:
    """Route the entries of the log above the "routed up to" mark, in all of its segments.

    The mark is raised in steps, so that no batch is as large as all that others published.
    """
    router, routed, seen = Router(db.connection), 0, 0
    while rows := _after(db.connection, loading.routed):
        routed += await db.write(_route, loading, router, rows)
        seen += len(rows)
    if seen:
        logger.info("routed %d of %d messages of the metadata log to queues", routed, seen)


def _after(connection: apsw.Connection, number: int) -> list[Logged]:
    rows = connection.execute(
        "SELECT * FROM logged WHERE id >= ? ORDER BY id LIMIT ?", (number, _CHUNK)
    )
    return list(map(Logged._make, rows))


def _route(db: Database, loading: Loading, router: Router, rows: Sequence[Logged]) -> int:
    """Add messages to their queues; answer how many of them have any."""
    routed = 0
    for logged in rows:
        arrivals = router.arrivals(logged)
        if arrivals and (why := _refusal(db.connection, loading, logged.number)) is not None:
            logger.error("message %d of the metadata log is refused: %s", logged.number, why)
            arrivals = []
        for number, arrival in enumerate(arrivals):
            position = db.take_positions(1, 0) if number else logged.number
            queue = db.make_queue(arrival.receiver.queue)
            db.touch(queue)
            is_shared = len(arrivals) > 1
            row = _row(
                loading, queue.content, position, logged, arrival, position, is_shared=is_shared
            )
            db.execute(INSERT_ENTRY, row)
            queue.expiry_at = min(queue.expiry_at, logged.received + arrival.ttl_ms)
            if row[3] == DELAYED:
                queue.delayed += 1
                queue.delayed_at = min(queue.delayed_at, arrival.due)
            else:
                queue.ready += 1
        if arrivals:
            values = (len(arrivals), logged.number)
            db.execute("UPDATE body SET holders = ? WHERE number = ?", values)
        else:
            db.execute("INSERT INTO unrouted VALUES (?, ?)", (logged.deadline, logged.number))
        routed += bool(arrivals)
    loading.routed = rows[-1].number + 1
    return routed


def _refusal(connection: apsw.Connection, loading: Loading, number: int) -> str | None:
    """Why a message's payload can't be handed out."""
    body = connection.execute("SELECT body FROM body WHERE number = ?", (number,)).get
    if body is None:
        return loading.lost.get(number, "the payload is missing")
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return "the payload is no JSON"
    return None


def _row(  # noqa: PLR0917 - which message comes to which place, and how
    loading: Loading,
    content: int,
    position: int,
    logged: Logged,
    arrival: Arrival,
    shown: int,
    *,
    is_shared: bool,
) -> Sequence[Any]:
    return loading.entry(
        content, position, logged.number, shown,
        state=DELAYED if arrival.due > loading.now else READY, priority=arrival.priority,
        due=arrival.due, until=0, ttl=arrival.ttl_ms,
        expires=min(logged.received + arrival.ttl_ms, MAX_POSITION),
        created=logged.received, claims=0, claim=None, claimed_at=0, is_shared=is_shared,
        client=logged.client, headers=logged.headers, origin=None,
    )  # fmt: skip


def put_back(loading: Loading) -> None:
    """Put the messages of lost pages back into their queues.

    Only queues that lost a page get any: in others, metadata without a holder belongs to no live
    message.
    """
    connection = loading.connection
    lost = {
        keys.read_queue_id(raw)
        for (raw,) in connection.execute(
            "SELECT DISTINCT raw FROM lost_page WHERE kind = ?", (RecordType.ACTIVE.value,)
        )
    }
    if not lost:
        return
    held, shared = _held(connection)
    router = Router(connection)
    found: dict[QueueRef, list[tuple[Logged, Arrival, bool]]] = defaultdict(list)
    rows = connection.execute(
        "SELECT * FROM logged WHERE id < ? AND id NOT IN (SELECT id FROM unrouted)"
        " AND id IN (SELECT number FROM body) ORDER BY id",
        (loading.routed,),
    )
    for logged in map(Logged._make, rows):
        arrivals = [] if logged.number in held else router.arrivals(logged)
        for arrival in arrivals:
            receiver, is_shared = arrival.receiver, len(arrivals) > 1
            if receiver.queue not in lost or (logged.number, receiver.queue) in shared:
                continue
            if is_shared and receiver.version > logged.number:
                continue  # its filter may have changed since the message came
            is_copy = keys.queue_id(receiver.queue).decode() != logged.queue
            # The place of a copy is not in the log.
            if is_copy or not _is_covered(loading, receiver.queue, logged.number):
                found[receiver.queue].append((logged, arrival, is_shared))
    for ref, entries in found.items():
        raw = keys.queue_id(ref)
        places = _Places(connection, loading.numbers_of(raw).content)
        for logged, arrival, is_shared in entries:
            place = logged.number if raw.decode() == logged.queue else places.next(logged.number)
            _put_back_one(loading, raw, place, logged, arrival, is_shared=is_shared)
        logger.error(
            "%d messages of %s were put back from the metadata log: their page was lost",
            len(entries), ref,
        )  # fmt: skip
    if found and any(
        one.key.startswith(keys.prefix(RecordType.GARBAGE)) for one in loading.damages
    ):
        logger.error("the list of purged messages is damaged: some of them may be back")


def _held(connection: apsw.Connection) -> tuple[set[int], set[tuple[int, QueueRef]]]:
    """The messages that one queue holds alone; and pairs of a shared message and a holder of it.

    A queue that moved a message to its dead-letter queue counts as a holder: it has not lost it.
    """
    held = {
        number for (number,) in connection.execute("SELECT body FROM entry WHERE is_shared = 0")
    }
    held.update(
        json.loads(fields)[0] for (fields,) in connection.execute("SELECT fields FROM aside")
    )
    shared: set[tuple[int, QueueRef]] = set()
    for number, project, name, origin in connection.execute(
        "SELECT body, project, name, origin FROM entry JOIN queue ON content = queue"
        " WHERE is_shared = 1"
    ):
        shared.add((number, QueueRef(project, name)))
        if origin is not None:
            shared.add((number, QueueRef(project, json.loads(origin)["source"])))
    return held, shared


def _is_covered(loading: Loading, ref: QueueRef, position: int) -> bool:
    """Whether an intact page would have the entry, so that it was removed before."""
    content = loading.numbers_of(keys.queue_id(ref)).content
    last = loading.connection.execute(
        "SELECT max(position) FROM entry WHERE queue = ?1 AND position >="
        " (SELECT first FROM page WHERE kind = ?2 AND queue = ?1 AND first <= ?3"
        "  ORDER BY first DESC LIMIT 1) AND position <"
        " coalesce((SELECT first FROM page WHERE kind = ?2 AND queue = ?1 AND first > ?3"
        "  ORDER BY first LIMIT 1), ?4)",
        (content, RecordType.ACTIVE.value, position, MAX_POSITION),
    ).get
    return last is not None and position < last


class _Places:
    """Free positions for copies whose page was lost, in the order of their messages."""

    def __init__(self, connection: apsw.Connection, content: int) -> None:
        self._connection = connection
        self._content = content
        self._before = 0
        self._copies: list[Any] = connection.execute(
            "SELECT body, position FROM entry WHERE queue = ? AND is_shared = 1"
            " ORDER BY body DESC, position DESC",
            (content,),
        ).fetchall()

    def next(self, number: int) -> int:
        """A position behind the copies of earlier messages; numbers ascend."""
        while self._copies and self._copies[-1][0] < number:
            self._before = max(self._before, self._copies.pop()[1])
        place = max(self._before + 1, number)
        taken = "SELECT 1 FROM entry WHERE queue = ? AND position = ?"
        while self._connection.execute(taken, (self._content, place)).get is not None:
            place += 1
        self._before = place
        return place


def _put_back_one(
    loading: Loading,
    raw: bytes,
    position: int,
    logged: Logged,
    arrival: Arrival,
    *,
    is_shared: bool,
) -> None:
    content, number = loading.numbers_of(raw).content, logged.number
    row = list(_row(loading, content, position, logged, arrival, number, is_shared=is_shared))
    claim = loading.claim_of(raw, number)
    if claim is not None:
        until = claim.created_at + claim.ttl_ms
        row[3], row[6], row[10], row[13] = LEASED, until, 1, claim.created_at
        row[7] = max(row[7], until + claim.grace_ms)
        row[12] = loading.hold(raw, number, position, claim.created_at, until)
    loading.connection.execute(INSERT_ENTRY, row)
    loading.restored.add((content, position))
    loading.again[content].add(position)
