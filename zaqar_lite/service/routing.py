"""Routing by filter: which other queues of the project receive a posted message (RFC 0001).

A queue with `_filter` gets a copy of every message that is posted to another queue of its project
and whose headers match. The copy has the default ttl, the default delay and the priority of the
queue that gets it. A filter sees the message's headers, and as the header `queue` the name of the
queue it was posted to. A copy is not copied again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.filters import Budget, FilterIndex, Headers
from zaqar_lite.domain.models import QueueRecord, QueueRef
from zaqar_lite.domain.posts import Copy, NewMessage
from zaqar_lite.domain.yielding import Slices
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.policy import Policies, Policy, Route

_MAX_CACHED = 1_000


class _Receivers(NamedTuple):
    """A project's queues with a filter, and what they were compiled from."""

    source: tuple[int, ...]
    matching: FilterIndex[tuple[QueueRef, Policy]]


class Router:
    """Give posted messages their priority and their copies.

    A filter is compiled once for each version of its record. A filter that can match only messages
    with a certain text in a certain header is evaluated only for these.
    """

    def __init__(self, policies: Policies) -> None:
        self.filtered_queues = policies.management.filtered_queues
        self._policies, self._limits = policies, policies.limits
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
                for (receiver, policy), matches in known.matching.candidates(headers):
                    await slices.next_turn()
                    if receiver != queue and matches(headers, budget):
                        copies.append(_copy(receiver, policy, headers, budget))
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
        source = (self._limits.default_message_ttl, *(record.version for record in records))
        known = self._projects.get(project)
        if known is None or known.source != source:
            filters = []
            for record in records:
                await slices.next_turn()
                policy = self._policies.of(record)
                if policy.route.matching is not None:
                    filters.append(((record.queue, policy), policy.route.matching))
            known = self._projects[project] = _Receivers(source, FilterIndex(filters))
        return known


def _copy(queue: QueueRef, policy: Policy, headers: Headers, budget: Budget) -> Copy:
    """The copy of a message that a queue gets."""
    delay_ms = policy.default_delay_ms
    ttl_ms = policy.default_ttl_ms + (delay_ms if policy.ttl_after_delay else 0)
    return Copy(queue, ttl_ms, delay_ms, policy.route.priority_of(headers, budget))
