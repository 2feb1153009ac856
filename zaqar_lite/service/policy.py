"""What a queue's record means for its messages, computed once per version of the record."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from zaqar_lite.domain.errors import Invalid, QueueChanged, Unavailable
from zaqar_lite.domain.filters import Budget, Filter, Headers, Rules, parse_filter, parse_rules
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import (
    ENCRYPT,
    FILTER,
    NOTIFY_ON_POST,
    ORDERED,
    PRIORITY,
    SUBSCRIBED,
    TTL_AFTER_DELAY,
    retries,
)
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    NO_RETRIES,
    Claimed,
    DelayMode,
    QueueRecord,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.yielding import next_turn
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.records import TRIES
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
_MAX_CACHED = 10_000
_LONGEST_SEARCH = 1.0
"""Seconds for which a claim or a pop goes on while its steps only move dead letters."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Route:
    """A queue's filter and its priority rules as functions; None where it has none."""

    matching: Filter | None = None
    priority: Rules | None = None

    def priority_of(self, headers: Headers, budget: Budget) -> int:
        """The priority of a message in this queue; what no rule matches has the default."""
        found = None if self.priority is None else self.priority(headers, budget)
        return DEFAULT_PRIORITY if found is None else found


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


@dataclass(frozen=True, slots=True)
class Policy:
    """A queue's rules at one version: milliseconds and bytes.

    `version` is what the message store compares (see `storage/base.py`): 0 for a queue without a
    record, None where the records live in another store.
    """

    exists: bool
    version: int | None
    default_ttl_ms: int
    default_delay_ms: int
    is_delayed: bool
    """Whether what is posted waits for its delay; a normal queue ignores it."""
    delay_mode: DelayMode
    max_post_size: int
    retries: RetryPolicy
    route: Route
    exposing: bool
    """Whether its delay was switched off, and messages still wait for theirs."""
    ttl_after_delay: bool
    """Whether ttls count from the end of the delay."""
    subscribed: bool
    """Whether the queue may have subscriptions."""
    ordered: tuple[str, ...]
    """The ids of the subscriptions that are delivered to in strict order."""
    notify_on_post: bool
    """Whether a delayed message is delivered at its post already, as upstream does."""
    encrypted: bool
    """Whether bodies are sealed before they are stored."""

    @property
    def letters_in(self) -> QueueRef | None:
        """The queue that dead letters are moved to."""
        letter = self.retries.dead_letter
        return None if letter is None else letter.target


@dataclass(eq=False, repr=False)
class Policies:
    """Answer the policy of a queue, and repeat what was decided by one that changed meanwhile.

    Where one store keeps records and messages, a policy is cached by version and every operation
    carries the version: the store compares it in its own atomic step, so that no process acts on
    metadata that is out of date, and no request pays a second call. The absence of a queue is
    never cached. Where the records live in another store they are read for every request.
    """

    management: ManagementStore
    limits: Limits
    checked: bool
    """Whether one store keeps records and messages, and so compares versions."""

    def __post_init__(self) -> None:
        self._cache: Cache[QueueRef, Policy] = Cache(_MAX_CACHED)

    async def get(self, queue: QueueRef) -> Policy:
        """The policy of a queue; that of an empty record when it has none."""
        return self._cache.get(queue) or await self.fresh(queue)

    async def fresh(self, queue: QueueRef) -> Policy:
        """The same by the record as it is now, for who acts on it without a version to compare."""
        return self.keep(queue, await self.management.get_queue(queue))

    def keep(self, queue: QueueRef, record: QueueRecord | None) -> Policy:
        """The policy of a record that has just been read."""
        policy = self._compile(queue, record)
        if self.checked and record is not None:
            self._cache[queue] = policy
        return policy

    def of(self, record: QueueRecord) -> Policy:
        """The policy of a record, compiled once for each of its versions."""
        cached = self._cache.get(record.queue)
        is_same = cached is not None and cached.version == record.version
        return cached if cached is not None and is_same else self.keep(record.queue, record)

    async def retries_of(self, queue: QueueRef) -> RetryPolicy:
        """What becomes of a queue's messages that fail (for the sweep)."""
        # Not the cached one: nothing compares the version of what a sweep does.
        record = await self.management.get_queue(queue)
        return NO_RETRIES if record is None else retries(queue, record.metadata)

    def forget_all(self) -> None:
        """Compile every policy anew: the server's limits have changed."""
        self._cache.clear()

    def forget(self, queue: QueueRef) -> None:
        """Read the queue's record again at the next call."""
        self._cache.pop(queue, None)

    async def decide(self, queue: QueueRef, act: Callable[[Policy], Awaitable[T]]) -> T:
        """Run `act` with the queue's policy, again with a fresh one whenever it changed.

        Raises:
            Unavailable: the record changed at every try.
        """
        for _ in range(TRIES):
            try:
                return await act(self._cache.get(queue) or await self.get(queue))
            except QueueChanged:
                self.forget(queue)
        raise Unavailable(f"The queue {queue.name!r} is being changed too often.")

    async def take(self, queue: QueueRef, act: Callable[[Policy], Awaitable[Claimed]]) -> Claimed:
        """Claim or pop by `act`; repeat it while a step used up its budget and found nothing.

        Clients take an empty answer for an empty queue, but a step may have moved dead letters
        only. After a second the empty answer is given all the same.
        """
        until = monotonic() + _LONGEST_SEARCH
        while True:
            claimed = await self.decide(queue, act)
            if claimed.messages or not claimed.more or monotonic() >= until:
                return claimed
            await next_turn()

    def _compile(self, queue: QueueRef, record: QueueRecord | None) -> Policy:
        limits, found = self.limits, record or QueueRecord(queue, {}, 0)
        metadata = found.metadata
        size = metadata.get("_max_messages_post_size") or limits.max_messages_post_size
        return Policy(
            exists=record is not None,
            version=found.version if self.checked else None,
            default_ttl_ms=(metadata.get("_default_message_ttl") or limits.default_message_ttl)
            * 1000,
            default_delay_ms=(metadata.get("_default_message_delay") or 0) * 1000,
            is_delayed=found.is_delayed,
            delay_mode=found.delay_mode,
            exposing=found.exposing,
            max_post_size=min(size, limits.max_messages_post_size),
            retries=retries(queue, metadata),
            route=stored_route(queue, metadata),
            ttl_after_delay=metadata.get(TTL_AFTER_DELAY) is True,
            subscribed=SUBSCRIBED in metadata,
            ordered=tuple(metadata.get(ORDERED, ())),
            notify_on_post=metadata.get(NOTIFY_ON_POST) is True,
            encrypted=metadata.get(ENCRYPT) is True,
        )
