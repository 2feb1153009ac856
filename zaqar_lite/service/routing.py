"""Routing by filter: which other queues of the project receive a posted message (RFC 0001).

A queue with `_filter` gets a copy of every message that is posted to another queue of its project
and whose headers match. The copy has the default ttl, the default delay and the priority of the
queue that gets it. A filter sees the message's headers, and as the header `queue` the name of the
queue it was posted to. A copy is not copied again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import (
    Budget,
    Filter,
    FilterIndex,
    Rules,
    parse_filter,
    parse_rules,
)
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import FILTER, PRIORITY, TTL_AFTER_DELAY
from zaqar_lite.domain.models import DEFAULT_PRIORITY, QueueRecord, QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.service.caching import Cache
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
Headers = Mapping[str, str]
_MAX_CACHED = 1_000


@dataclass(frozen=True, slots=True)
class Route:
    """A queue's filter and its priority rules as functions; None where it has none."""

    matching: Filter | None = None
    priority: Rules | None = None

    def priority_of(self, headers: Headers, budget: Budget) -> int:
        """The priority of a message in this queue; what no rule matches has the default."""
        found = None if self.priority is None else self.priority(headers, budget)
        return DEFAULT_PRIORITY if found is None else found


class _Receiver(NamedTuple):
    """A queue with a filter, as its record at this version has it; times are seconds."""

    queue: QueueRef
    version: int
    ttl: int | None
    delay: int
    ttl_after_delay: bool
    route: Route

    def copy(self, headers: Headers, budget: Budget, default_ttl: int) -> Copy:
        """The copy of a message that it gets."""
        priority = self.route.priority_of(headers, budget)
        ttl = (self.ttl or default_ttl) + (self.delay if self.ttl_after_delay else 0)
        return Copy(self.queue, ttl * 1000, self.delay * 1000, priority)


class _Receivers(NamedTuple):
    """A project's receivers, and the versions of the records that they were made from."""

    versions: tuple[int, ...]
    receivers: Mapping[QueueRef, _Receiver]
    matching: FilterIndex[_Receiver]


def compile_route(metadata: Mapping[str, Any]) -> Route:
    """Read a queue's filter and priority rules.

    Raises:
        Invalid: says what is wrong in the text, and at which position.
    """
    matching, rules = metadata.get(FILTER), metadata.get(PRIORITY)
    return Route(
        None if matching is None else parse_filter(matching),
        None if rules is None else parse_rules(rules),
    )


def stored_route(queue: QueueRef, metadata: Mapping[str, Any]) -> Route:
    """Read the filter and the rules of a stored record.

    A filter or rule that an earlier version accepted and this one refuses is left out: otherwise
    the queue could not be used at all.
    """
    try:
        return compile_route(metadata)
    except Invalid as exc:
        logger.warning("the filter and the priorities of %s are not used: %s", queue, exc)
        return Route()


class Router:
    """Give posted messages their priority and their copies.

    A filter is compiled once for each version of its record. A filter that can match only messages
    with a certain text in a certain header is evaluated only for these.
    """

    def __init__(self, management: ManagementStore, limits: Limits) -> None:
        self.filtered_queues = management.filtered_queues
        self._limits = limits
        self._projects: Cache[str, _Receivers] = Cache(_MAX_CACHED)

    async def route(
        self,
        queue: QueueRef,
        messages: Sequence[NewMessage],
        own: Route,
        filtered: Sequence[QueueRecord],
    ) -> Sequence[NewMessage]:
        """Give messages their priority by the queue's `own` rules, and their copies.

        `filtered` are the queues of the project that have a filter.

        Raises:
            Invalid: more copies than a post may make, or more steps than its filters may take.
        """
        slices = Slices()
        known = await self._receivers(queue.project, filtered, slices)
        budget, copies_left = Budget(), self._limits.max_copies_per_post
        routed = []
        for index, message in enumerate(messages):
            # `queue` comes last, so that a header of the client can't replace it.
            headers = {**(message.headers or {}), "queue": queue.name}
            copies: list[Copy] = []
            try:
                for receiver, matches in known.matching.candidates(headers):
                    await slices.next_turn()
                    if receiver.queue != queue and matches(headers, budget):
                        default_ttl = self._limits.default_message_ttl
                        copies.append(receiver.copy(headers, budget, default_ttl))
                copies_left -= len(copies)
                if copies_left < 0:
                    raise Invalid(
                        f"the filters of this project would make more than "
                        f"{self._limits.max_copies_per_post} copies of this post: post fewer "
                        "messages at once."
                    )
                await slices.next_turn()
                priority = own.priority_of(headers, budget)
            except Invalid as exc:
                raise Invalid(f"Message {index}: {exc}") from exc
            routed.append(replace(message, priority=priority, copies=tuple(copies)))
        return routed

    async def _receivers(
        self, project: str, records: Sequence[QueueRecord], slices: Slices
    ) -> _Receivers:
        versions = tuple(record.version for record in records)
        known = self._projects.get(project)
        if known is None or known.versions != versions:
            earlier = {} if known is None else known.receivers
            receivers = {}
            for record in records:
                receiver = earlier.get(record.queue)
                if receiver is None or receiver.version != record.version:
                    await slices.next_turn()
                    receiver = _receiver(record)
                receivers[record.queue] = receiver
            index = FilterIndex(
                (receiver, receiver.route.matching)
                for receiver in receivers.values()
                if receiver.route.matching is not None
            )
            known = self._projects[project] = _Receivers(versions, receivers, index)
        return known


def _receiver(record: QueueRecord) -> _Receiver:
    metadata = record.metadata
    return _Receiver(
        record.queue,
        record.version,
        metadata.get("_default_message_ttl"),
        metadata.get("_default_message_delay") or 0,
        metadata.get(TTL_AFTER_DELAY) is True,
        stored_route(record.queue, metadata),
    )
