"""Routing what other writers of the RFC published into the metadata log.

Their messages are routed as the service would have done. In the queue that a message was published
to it has the log's visible-at and retention. A queue that receives it by a filter uses its own
default delay and default ttl, or the log's retention if it has no ttl. Each queue uses its own
priority. A message that names no queue is offered to the filters of all projects. A message that
no queue receives is kept until its retention ends. Two kinds of messages are refused, named in the
server's log and kept in the same way: those whose payload can't be handed out, because it is a
reference or lost, and those whose payload is no JSON, because one would make the whole answer
invalid.
"""

import json
import logging
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
from zaqar_lite.storage.opendata.format.active import Extra
from zaqar_lite.storage.opendata.loading import INSERT_ENTRY, Loading
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.entries import first_of

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
    def ttl_ms(self) -> int:
        """Its retention; 0 seconds are for ever."""
        return (self.retention_s or _LONGEST_S) * 1000


class _Arrival(NamedTuple):
    """A message as it comes to a queue."""

    queue: QueueRef
    priority: int
    ttl_ms: int
    due: int


class _Receiver:
    """A queue with its filter, priorities, default ttl and default delay."""

    def __init__(self, ref: QueueRef, metadata: Mapping[str, Any]) -> None:
        self.ref = ref
        text, rules = metadata.get(FILTER), metadata.get(PRIORITY)
        self._matches: Filter | None = None
        self._priority: Rules | None = None
        try:
            self._matches = parse_filter(text) if isinstance(text, str) else None
            self._priority = parse_rules(rules) if isinstance(rules, str) else None
        except Invalid as exc:
            logger.warning("the filter and the priorities of %s are not used: %s", ref, exc)
            self._matches = None
        ttl, delay = metadata.get("_default_message_ttl"), metadata.get("_default_message_delay")
        self._ttl_ms = ttl * 1000 if isinstance(ttl, int) else None
        self._delay_ms = delay * 1000 if isinstance(delay, int) else 0

    def copy(self, logged: Logged, headers: Headers) -> _Arrival | None:
        """How a message comes here by the filter; None where it does not."""
        try:
            if self._matches is None or not self._matches(headers):
                return None
        except Invalid as exc:
            logger.warning("a message was not copied into %s: %s", self.ref, exc)
            return None
        due = logged.received + self._delay_ms if self._delay_ms else 0
        return self.arrival(headers, self._ttl_ms or logged.ttl_ms, due)

    def arrival(self, headers: Headers, ttl_ms: int, due: int) -> _Arrival:
        """How a message comes here, by the priorities."""
        found = None
        try:
            found = None if self._priority is None else self._priority(headers)
        except Invalid as exc:
            logger.warning("a message has the default priority in %s: %s", self.ref, exc)
        return _Arrival(self.ref, DEFAULT_PRIORITY if found is None else found, ttl_ms, due)


class _Router:
    """Finds the queues of logged messages; parses each queue's filter once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._known: dict[QueueRef, _Receiver] = {}
        self._filtered = [
            self._receiver(QueueRef(project, name))
            for project, name in connection.execute(
                "SELECT project, name FROM queue WHERE has_filter = 1 ORDER BY project, name"
            )
        ]

    def _receiver(self, ref: QueueRef) -> _Receiver:
        if ref not in self._known:
            statement = "SELECT metadata FROM queue WHERE project = ? AND name = ?"
            metadata = self._connection.execute(statement, ref).get
            self._known[ref] = _Receiver(ref, json.loads(metadata or "{}"))
        return self._known[ref]

    def arrivals(self, logged: Logged) -> list[_Arrival]:
        """How a message comes to the queue that it was published to, and to those by filter."""
        headers = {} if logged.headers is None else json.loads(logged.headers)
        ref, found = None, []
        with suppress(CodecError):
            ref = None if logged.queue is None else keys.read_queue_id(logged.queue.encode())
        if ref is not None:
            headers[records.QUEUE_HEADER] = ref.name
            due = logged.visible if logged.visible != logged.received else 0
            found.append(self._receiver(ref).arrival(headers, logged.ttl_ms, due))
        for one in self._filtered:
            if ref is None or (one.ref != ref and one.ref.project == ref.project):
                copy = one.copy(logged, headers)
                found += [] if copy is None else [copy]
        return found


async def replay(db: Database, loading: Loading) -> None:
    """Route the entries of the log above the "routed up to" mark, in all of its segments.

    The mark is raised in steps, so that no batch is as large as all that others published.
    """
    router, routed, seen = _Router(db.connection), 0, 0
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


def _route(db: Database, loading: Loading, router: _Router, rows: Sequence[Logged]) -> int:
    """Add messages to their queues; answer how many of them have any."""
    routed = 0
    for logged in rows:
        arrivals = router.arrivals(logged)
        if arrivals and (why := _refusal(db.connection, loading, logged.number)) is not None:
            logger.error("message %d of the metadata log is refused: %s", logged.number, why)
            arrivals = []
        for number, arrival in enumerate(arrivals):
            position = db.take_positions(1, 0) if number else logged.number
            queue = db.make_queue(arrival.queue)
            db.touch(queue)
            expires = min(logged.received + arrival.ttl_ms, MAX_POSITION)
            is_delayed = arrival.due > loading.now
            fields = logged.number, arrival.priority, arrival.due, expires, 0
            extra = Extra(
                ttl_ms=arrival.ttl_ms, position=position, renamed=True, shared=len(arrivals) > 1
            )
            known = logged.received, logged.client, logged.headers
            db.execute(INSERT_ENTRY, loading.row(b"", queue.content, fields, extra, known))
            size = "SELECT length(body) FROM body WHERE number = ?"
            queue.bytes += first_of(db, size, (logged.number,))
            queue.expiry_at = min(queue.expiry_at, expires)
            if is_delayed:
                queue.delayed += 1
                queue.delayed_at = min(queue.delayed_at, arrival.due)
            else:
                queue.ready += 1
        if arrivals:
            values = (len(arrivals), logged.number)
            db.execute("UPDATE body SET holders = ? WHERE number = ?", values)
        else:
            deadline = max(0, min(logged.received + logged.ttl_ms, MAX_POSITION))
            db.execute("INSERT INTO unrouted VALUES (?, ?)", (deadline, logged.number))
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
