"""Routing by filter: which other queues of the project receive a posted message (RFC 0001).

A queue with `_filter` receives every message posted to another queue of its project whose headers
match, in an entry of its own: its default ttl, its default delay, its priority. A filter sees the
message's headers, and as `queue` the name of the queue it was posted to. Copies go no further.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zaqar_lite.domain import filters
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import FILTER, PRIORITY
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    Capability,
    Copy,
    NewMessage,
    QueueRecord,
    QueueRef,
)
from zaqar_lite.storage.base import ManagementStore, MessageStore

Headers = Mapping[str, str]
Priority = Callable[[Headers], int | None]
_MAX_CACHED = 1_000


@dataclass(frozen=True, slots=True)
class Route:
    """A queue's filter as a tree and its priority rules as a function; None where it has none."""

    matching: filters.Node | None
    priority: Priority | None

    def priority_of(self, headers: Headers) -> int:
        """The priority of a message in this queue; what no rule matches has the default."""
        found = None if self.priority is None else self.priority(headers)
        return DEFAULT_PRIORITY if found is None else found


class _Receiver(NamedTuple):
    """A queue that receives what its filter matches."""

    queue: QueueRef
    ttl_ms: int
    delay_ms: int
    route: Route


class _Receivers(NamedTuple):
    """A project's receivers, and the versions of the records that they were made of."""

    versions: tuple[int, ...]
    matching: filters.FilterIndex[_Receiver]


def compile_route(metadata: Mapping[str, Any]) -> Route:
    """Read a queue's filter and priority rules.

    Raises:
        Invalid: says what is wrong in the text, and at which position.
    """
    matching, rules = metadata.get(FILTER), metadata.get(PRIORITY)
    return Route(
        None if matching is None else filters.parse_filter(matching),
        None if rules is None else filters.compile_priority(filters.parse_rules(rules)),
    )


class Router:
    """Add to posted messages their priority and their copies, where the store has FAN_OUT.

    A project's filters are compiled once for each state of its records; of each message only
    those are evaluated whose demanded equality holds.
    """

    def __init__(self, messages: MessageStore, management: ManagementStore, limits: Limits) -> None:
        self._management = management
        self._limits = limits
        self._fans_out = Capability.FAN_OUT in messages.capabilities
        self._projects: OrderedDict[str, _Receivers] = OrderedDict()

    async def route(
        self, queue: QueueRef, messages: Sequence[NewMessage], own: Route
    ) -> Sequence[NewMessage]:
        """Give messages their priority by the queue's `own` rules, and their copies.

        Costs nothing in a project without filters.
        """
        if not self._fans_out:
            return messages
        records = await self._management.filtered_queues(queue.project)
        if not records and own.priority is None:
            return messages
        index = self._receivers(queue.project, records).matching
        return [self._routed(queue, message, own, index) for message in messages]

    @staticmethod
    def _routed(
        queue: QueueRef,
        message: NewMessage,
        own: Route,
        index: filters.FilterIndex[_Receiver],
    ) -> NewMessage:
        # Last, so that no header of a client's can name another queue.
        headers = {**(message.headers or {}), "queue": queue.name}
        copies = tuple(
            Copy(
                receiver.queue,
                receiver.ttl_ms,
                receiver.delay_ms,
                receiver.route.priority_of(headers),
            )
            for receiver in index.matches(headers)
            if receiver.queue != queue
        )
        return message._replace(priority=own.priority_of(headers), copies=copies)

    def _receivers(self, project: str, records: Sequence[QueueRecord]) -> _Receivers:
        versions = tuple(record.version for record in records)
        known = self._projects.get(project)
        if known is None or known.versions != versions:
            known = _Receivers(versions, filters.FilterIndex(self._compiled(records)))
            self._projects[project] = known
            if len(self._projects) > _MAX_CACHED:
                self._projects.popitem(last=False)
        return known

    def _compiled(self, records: Sequence[QueueRecord]) -> list[tuple[_Receiver, filters.Node]]:
        compiled = []
        for record in records:
            metadata = record.metadata
            route = compile_route(metadata)
            if route.matching is None:
                continue
            ttl = metadata.get("_default_message_ttl") or self._limits.default_message_ttl
            delay = metadata.get("_default_message_delay") or 0
            receiver = _Receiver(record.ref, ttl * 1000, delay * 1000, route)
            compiled.append((receiver, route.matching))
        return compiled
