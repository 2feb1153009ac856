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
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import apsw
from msgspec import MsgspecError
from msgspec.json import decode

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import Filter, Headers, Rules, parse_filter, parse_rules
from zaqar_lite.domain.ids import MAX_POSITION
from zaqar_lite.domain.metadata import FILTER, PRIORITY, TTL_AFTER_DELAY
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRef
from zaqar_lite.storage.opendata.format import CodecError, keys, records
from zaqar_lite.storage.opendata.format.active import Element, Extra
from zaqar_lite.storage.opendata.format.keys import RecordType
from zaqar_lite.storage.opendata.loading import INSERT_ENTRY, Loading

logger = logging.getLogger(__name__)


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
        return (self.retention_s or records.LONGEST_S) * 1000


class _Receiver(NamedTuple):
    """A queue with its filter, its priorities, its default ttl and its default delay.

    `more_ms` is what a ttl that counts from the end of the delay has more.
    """

    ref: QueueRef
    matching: Filter | None
    priority: Rules | None
    ttl_ms: int | None
    delay_ms: int
    more_ms: int

    def takes(self, headers: Headers) -> bool:
        """Whether a message comes here by the filter."""
        try:
            return self.matching is not None and self.matching(headers)
        except Invalid as exc:
            logger.warning("a message was not copied into %s: %s", self.ref, exc)
            return False

    def priority_of(self, headers: Headers) -> int:
        """The priority of a message here."""
        found = None
        try:
            found = None if self.priority is None else self.priority(headers)
        except Invalid as exc:
            logger.warning("a message has the default priority in %s: %s", self.ref, exc)
        return DEFAULT_PRIORITY if found is None else found


class _Arrival(NamedTuple):
    """A message as it comes to a queue."""

    queue: QueueRef
    priority: int
    ttl_ms: int
    due: int


class _Router:
    """Finds the queues of logged messages; parses each queue's filter once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._known: dict[QueueRef, _Receiver] = {}
        filtered = "SELECT project, name FROM queue WHERE has_filter = 1 ORDER BY project, name"
        self._filtered = [self._receiver(QueueRef(*ref)) for ref in connection.execute(filtered)]

    def _receiver(self, ref: QueueRef) -> _Receiver:
        if ref not in self._known:
            statement = "SELECT metadata FROM queue WHERE project = ? AND name = ?"
            metadata = json.loads(self._connection.execute(statement, ref).get or "{}")
            text, rules = metadata.get(FILTER), metadata.get(PRIORITY)
            matching = priority = None
            try:
                priority = parse_rules(rules) if isinstance(rules, str) else None
                matching = parse_filter(text) if isinstance(text, str) else None
            except Invalid as exc:
                logger.warning("the filter and the priorities of %s are not used: %s", ref, exc)
                matching = priority = None
            ttl, delay = (metadata.get(f"_default_message_{name}") for name in ("ttl", "delay"))
            delay_ms = delay * 1000 if isinstance(delay, int) else 0
            self._known[ref] = _Receiver(
                ref, matching, priority, ttl * 1000 if isinstance(ttl, int) else None, delay_ms,
                delay_ms if metadata.get(TTL_AFTER_DELAY) is True else 0,
            )  # fmt: skip
        return self._known[ref]

    def arrivals(self, logged: Logged) -> Iterator[_Arrival]:
        """How a message comes to the queue that it was published to, and to those by filter."""
        headers = {} if logged.headers is None else json.loads(logged.headers)
        ref = None
        with suppress(CodecError):
            ref = None if logged.queue is None else keys.read_queue_id(logged.queue.encode())
        if ref is not None:
            headers[records.QUEUE_HEADER] = ref.name
            due = logged.visible if logged.visible != logged.received else 0
            priority = self._receiver(ref).priority_of(headers)
            yield _Arrival(ref, priority, logged.ttl_ms, due)
        for one in self._filtered:
            is_asked = ref is None or (one.ref != ref and one.ref.project == ref.project)
            if is_asked and one.takes(headers):
                due = logged.received + one.delay_ms if one.delay_ms else 0
                ttl_ms = (one.ttl_ms or logged.ttl_ms) + one.more_ms
                yield _Arrival(one.ref, one.priority_of(headers), ttl_ms, due)


async def route(loading: Loading) -> None:
    """Route the entries of the log above the "routed up to" mark, in all of its segments."""
    connection, router, routed = loading.connection, _Router(loading.connection), 0
    rows = connection.execute(
        "SELECT * FROM logged WHERE id >= ? ORDER BY id", (loading.own.routed,)
    ).fetchall()
    for logged in map(Logged._make, rows):
        await loading.slices.next_turn()
        arrivals = list(router.arrivals(logged))
        if arrivals and (why := _refusal(loading, logged.number)) is not None:
            logger.error("message %d of the metadata log is refused: %s", logged.number, why)
            arrivals = []
        for place, arrival in enumerate(arrivals):
            _enter(loading, logged, arrival, is_first=not place, is_shared=len(arrivals) > 1)
        if not arrivals:
            deadline = max(0, min(logged.received + logged.ttl_ms, MAX_POSITION))
            connection.execute("INSERT INTO unrouted VALUES (?, ?)", (deadline, logged.number))
            loading.lacking.put(keys.unrouted_key(deadline, logged.number), b"")
        routed += bool(arrivals)
    if rows:
        logger.info("routed %d of %d messages of the metadata log", routed, len(rows))


def _enter(
    loading: Loading, logged: Logged, arrival: _Arrival, *, is_first: bool, is_shared: bool
) -> None:
    """Add a message to a queue: at its number, or where that is taken at a new position."""
    if not is_first:
        loading.position += 1
    position = logged.number if is_first else loading.position
    queue = loading.numbers_of(keys.queue_id(arrival.queue))
    expires = min(logged.received + arrival.ttl_ms, MAX_POSITION)
    fields = logged.number, arrival.priority, arrival.due, expires, 0
    extra = Extra(ttl_ms=arrival.ttl_ms, position=position, renamed=True, shared=is_shared or None)
    known = logged.received, logged.client, logged.headers
    row = loading.row(queue, Element(False, fields, extra), known)
    loading.connection.execute(INSERT_ENTRY, row)
    loading.again[RecordType.ACTIVE, queue.content].add(position)


def _refusal(loading: Loading, number: int) -> str | None:
    """Why a message's payload can't be handed out."""
    body = loading.connection.execute("SELECT body FROM body WHERE number = ?", (number,)).get
    if body is None:
        damage = loading.unreadable.get(keys.message_key(RecordType.PAYLOAD, number))
        return "the payload is missing" if damage is None else damage.why
    try:
        decode(body)
    except (MsgspecError, ValueError, RecursionError):
        return "the payload is no JSON"
    return None
