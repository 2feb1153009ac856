"""The rules of queues: create, read, patch, delete, list, count and purge."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from msgspec.structs import replace

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.errors import (
    Invalid,
    LimitReached,
    NotFound,
    QuotaReached,
)
from zaqar_lite.domain.limits import Limits, page_limit
from zaqar_lite.domain.metadata import Operation, apply_patch
from zaqar_lite.domain.models import (
    Capability,
    Claimed,
    ClaimRequest,
    DelayMode,
    HistoryPage,
    HistoryState,
    QueueRecord,
    QueueRef,
    Stats,
    is_delayed,
)
from zaqar_lite.domain.quotas import QuotaOf, unlimited
from zaqar_lite.service.background import LoggedErrors
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.metrics.queue_depths import RecentRates
from zaqar_lite.service.policy import Policies, Policy, compile_route
from zaqar_lite.service.pooling.placement import Placements
from zaqar_lite.service.records import retried
from zaqar_lite.service.subscriptions.subscriber_cache import list_subscriptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

_SEEN_FOR = 1.0
_MOST_SEEN = 10_000


@dataclass(eq=False, repr=False)
class Queues:
    """What a user may do with queues as such."""

    management: ManagementStore
    messages: MessageStore
    policies: Policies
    limits: Limits
    quota_of: QuotaOf = unlimited
    encrypts: bool = False
    placements: Placements | None = None

    def __post_init__(self) -> None:
        self._seen: Cache[QueueRef, float] = Cache(_MOST_SEEN)
        """Until when (monotonic clock) a dead-letter queue is assumed to have a record."""
        self.recent = RecentRates(self.messages)
        """What the queues that somebody looks at held in the last hour."""

    async def create(self, queue: QueueRef, metadata: Mapping[str, Any]) -> bool:
        """Create a queue; False when it exists, whose metadata then stay as they are.

        Raises:
            Invalid: a reserved attribute is wrong, or would chain dead-letter queues.
            LimitReached: the project has too many queues.
            QuotaReached: it has as many as its quota allows.
        """
        self._check(queue, metadata)
        await self._check_relations(queue, metadata)
        _, created = await self._create(queue, metadata)
        return created

    def _check(self, queue: QueueRef, metadata: Mapping[str, Any]) -> None:
        rules.validate(queue, metadata, self.limits)
        if metadata.get(rules.ENCRYPT) and not self.encrypts:
            raise Invalid(
                f"{rules.ENCRYPT} must be false: this server does not encrypt messages, because it "
                "has no encryption_key_file."
            )

    async def ensure(self, queue: QueueRef) -> Policy:
        """Create a queue with empty metadata unless it exists (lazy queues, dead letters)."""
        record, _ = await self._create(queue, {})
        return self.policies.keep(queue, record)

    async def _create(
        self, queue: QueueRef, metadata: Mapping[str, Any]
    ) -> tuple[QueueRecord, bool]:
        """Create a queue, marked when it has subscriptions: they outlive their queue."""
        if subscriptions := await list_subscriptions(self.management, queue):
            metadata = {**metadata, rules.SUBSCRIBED: 1}
            if ordered := [one.id for one in subscriptions if one.is_ordered]:
                metadata[rules.ORDERED] = ordered[: rules.MAX_ORDERED]
        if self.placements is not None:
            await self.placements.decide(queue, metadata)
        most, quota = self.limits.max_queues_per_project, self.quota_of(queue.project).queues
        bound = most if quota is None else min(most, quota)
        try:
            return await self.management.create_queue(queue, metadata, max_queues=bound)
        except LimitReached:
            if self.placements is not None:
                sources = await self.management.dead_letter_sources(queue, limit=1)
                if not sources:  # else their letters may lie there, without a record
                    await self.placements.leave(queue)
            if bound != quota:
                raise
            raise QuotaReached(f"{quota} queues", "delete some") from None

    async def claim(
        self, queue: QueueRef, request: ClaimRequest, messages: MessageStore
    ) -> Claimed:
        """Claim by the queue's policy, from `messages`: they may be counted, or opened.

        Exhausted messages are in the dead-letter queue then, and that queue exists unless the
        project has too many.
        """

        async def act(policy: Policy) -> Claimed:
            version = policy.version
            if policy.exposing:
                await messages.release_delayed(queue, request.limit, version=version)
            claimed = await messages.claim(
                queue,
                replace(
                    request, version=version, delay_mode=policy.delay_mode, retries=policy.retries
                ),
            )
            if claimed.moved:
                await self.ensure_dead_letter_queue(policy.letters_in)
            return claimed

        return await self.policies.take(queue, act)

    async def ensure_dead_letter_queue(self, queue: QueueRef | None) -> None:
        """Create the queue that letters have just been moved to, if to any, unless it exists.

        This never fails, because what was claimed or popped in the same step must reach its client.
        A queue without a record holds its letters all the same, and the next move tries again. It
        is looked at once in _SEEN_FOR seconds, because other processes may delete it.
        """
        if queue is None or monotonic() < self._seen.get(queue, 0.0):
            return
        with LoggedErrors(f"the record of the dead-letter queue {queue.name!r}"):
            if await self.management.get_queue(queue) is None:
                await self.ensure(queue)
            self._seen[queue] = monotonic() + _SEEN_FOR

    async def metadata(self, queue: QueueRef) -> dict[str, Any]:
        """The metadata of a queue with the defaults filled in, also of one that is not there."""
        record = await self.management.get_queue(queue)
        return rules.with_overlay(record.metadata if record else {}, self.limits)

    async def stored_metadata(self, queue: QueueRef) -> dict[str, Any] | None:
        """The metadata of a queue as somebody set it; None for a queue that is not there."""
        record = await self.management.get_queue(queue)
        return None if record is None else rules.visible(record.metadata)

    async def patch(self, queue: QueueRef, operations: Sequence[Operation]) -> dict[str, Any]:
        """Change metadata, all operations or none, as `change` does.

        Raises:
            NotFound: no such queue.
            Conflict: an operation on a key that the queue does not have.
            Invalid: the outcome breaks a rule of `create`.
        """
        shown = rules.overlay(self.limits)
        return await self.change(queue, lambda old: apply_patch(operations, old, shown))

    @retried("The queue {1.name!r}")
    async def change(
        self, queue: QueueRef, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Replace metadata by what `change` makes of them, exclusive against other changes.

        Switching a delay off makes the queue exposing (architecture, section 3): O(1).

        Raises:
            NotFound: no such queue.
            Invalid: the outcome breaks a rule of `create`.
        """
        record = await self.management.get_queue(queue)
        if record is None:
            raise NotFound(f"Queue {queue.name} does not exist.")
        patched = change(rules.visible(record.metadata))
        self._check(queue, patched)
        rules.check_size(patched, self.limits)
        await self._check_relations(queue, patched)
        if self.placements is not None:
            await self.placements.decide(queue, patched)  # its dead letters lie beside it
        stored = {**patched, **rules.hidden(record.metadata)}
        exposes = record.delay_mode is DelayMode.HONOUR and not is_delayed(patched)
        try:
            await self.management.update_queue(
                QueueRecord(queue, stored, record.version, exposing=exposes)
            )
        finally:
            self.policies.forget(queue)
        return rules.with_overlay(patched, self.limits)

    @retried("The queue {1.name!r}")
    async def delete(self, queue: QueueRef) -> None:
        """Delete a queue with all it holds; no error when it is not there.

        Messages first, the record last: a crash in between leaves an empty queue, which the
        repeated call removes, and never messages that would come back with a new queue. The
        second purge removes what was posted in between where the two stores are not one. A queue
        that is patched or made again meanwhile is deleted too.
        """
        record = await self.management.get_queue(queue)
        await self.messages.purge(queue, forget=True)
        self.policies.forget(queue)
        self._seen.pop(queue, None)
        if self.placements is not None:
            await self.placements.leave(queue, is_made=record is not None)
        if record is None:
            return
        await self.management.delete_queue(queue, version=record.version)
        if not self.policies.checked:
            await self.messages.purge(queue, forget=True)

    async def list_queues(
        self,
        project: str,
        *,
        marker: str | None,
        limit: int | None,
        name_contains: str | None,
        metadata: Mapping[str, Any],
    ) -> Sequence[QueueRecord]:
        """List a project's queues by name, after `marker`."""
        limit = page_limit(limit, self.limits.max_queues_per_page)
        return await self.management.list_queues(
            project,
            marker=marker,
            limit=limit,
            name_contains=name_contains,
            metadata=metadata,
        )

    def shown(self, record: QueueRecord) -> dict[str, Any]:
        """A listed queue's metadata with the defaults filled in."""
        return rules.with_overlay(record.metadata, self.limits)

    async def count(self, project: str) -> int:
        """Count a project's queues."""
        return await self.management.count_queues(project)

    async def stats(self, queue: QueueRef) -> Stats:
        """Count a queue's messages by state; zeros for a queue that is not there."""
        return await self.messages.stats(queue)

    async def dead_letter_sources(self, queue: QueueRef, *, limit: int) -> Sequence[str]:
        """Name the queues whose dead letters go to a queue, up to `limit`."""
        return await self.management.dead_letter_sources(queue, limit=limit)

    async def purge(self, queue: QueueRef, resource_types: Collection[str]) -> None:
        """Remove all messages, claimed and delayed ones too, if they are among the types.

        Subscriptions are removed by `Subscriptions.purge`.

        Raises:
            Invalid: an unknown resource type.
        """
        if set(resource_types) - {"messages", "subscriptions"}:
            raise Invalid("Resource types must be a sub set of ['messages', 'subscriptions'].")
        if "messages" in resource_types:
            await self.messages.purge(queue)

    async def history(
        self, queue: QueueRef, state: HistoryState, *, marker: str | None, limit: int | None
    ) -> HistoryPage:
        """List what was acknowledged or failed, where the store keeps it.

        Raises:
            Unsupported: the store keeps no history.
        """
        limit = page_limit(limit, self.limits.max_messages_per_page)
        return await self.messages.history(queue, state, marker=marker, limit=limit)

    async def _check_relations(self, queue: QueueRef, metadata: Mapping[str, Any]) -> None:
        self._check_capabilities(metadata)
        await self._check_chain(queue, metadata)
        await self._check_filters(queue, metadata)

    def _check_capabilities(self, metadata: Mapping[str, Any]) -> None:
        if metadata.get(rules.FILTER) is not None and not self.management.finds_filters:
            raise Invalid(f"{rules.FILTER} needs the embedded store for the queues' records.")
        if self.placements is not None:
            return  # it finds a pool that can do what is asked for, or refuses
        for key, capability in rules.NEEDED.items():
            if metadata.get(key) is None:
                continue
            if capability is Capability.HISTORY and not self.policies.checked:
                # A store keeps a history by the retention in its own record of the queue.
                raise Invalid(
                    f"{key} needs the queue's record in the message store; this server keeps "
                    "records in another one (management_store)."
                )
            if capability not in self.messages.capabilities:
                raise Invalid(
                    f"{key} needs the embedded store for the messages (its capability "
                    f"{capability.value}); this server keeps them in another store."
                )

    async def _check_chain(self, queue: QueueRef, metadata: Mapping[str, Any]) -> None:
        """A dead-letter queue may not have one itself (the spec, proposed change 1).

        Two racing writes may both pass, which is harmless: a move is one hop.
        """
        target = rules.dead_letter_target(metadata)
        if target is None:
            return
        sources = await self.management.dead_letter_sources(queue, limit=1)
        if sources:
            raise Invalid(
                f"_dead_letter_queue can't be set: {queue.name!r} is the dead-letter queue of "
                f"{sources[0]!r}, and dead-letter queues do not chain."
            )
        record = await self.management.get_queue(QueueRef(queue.project, target))
        if record is not None and rules.dead_letter_target(record.metadata) is not None:
            raise Invalid(
                f"_dead_letter_queue can't be {target!r}: it has a dead-letter queue itself, and "
                "dead-letter queues do not chain."
            )

    async def _check_filters(self, queue: QueueRef, metadata: Mapping[str, Any]) -> None:
        if metadata.get(rules.FILTER) is None and metadata.get(rules.PRIORITY) is None:
            return
        compile_route(metadata)  # raises Invalid with the position of the error
        if metadata.get(rules.FILTER) is None:
            return  # priority rules cost the other queues' posts nothing
        known = {record.queue for record in await self.management.filtered_queues(queue.project)}
        if queue not in known and len(known) >= self.limits.max_filters_per_project:
            raise Invalid(
                f"A project may have {self.limits.max_filters_per_project} queues with a filter."
            )
