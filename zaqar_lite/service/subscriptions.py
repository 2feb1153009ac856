"""The rules of subscriptions: make, read, list, change, confirm, delete and purge.

A subscription is a record; a second one, named by a digest of the subscriber, keeps a subscriber
from being there twice. The queue's own record is marked in the same request: so a post learns
without a call of its own whether the queue has subscriptions.
"""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import (
    Conflict,
    Invalid,
    LimitReached,
    NotFound,
    QueueChanged,
    QuotaReached,
    RecordChanged,
    Unavailable,
)
from zaqar_lite.domain.ids import is_message_id, new_message_id
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import ORDERED, SUBSCRIBED
from zaqar_lite.domain.models import QueueRecord, QueueRef, Record
from zaqar_lite.domain.quotas import QuotaOf, unlimited
from zaqar_lite.domain.subscriptions import (
    KIND,
    Secret,
    Subscription,
    SubscriptionDraft,
    check_subscriber,
    merged_options,
    new_secret,
    new_token,
)
from zaqar_lite.domain.topics import check_queue_subscriber, is_topic, queue_in
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.subscribers import Subscribers, count_subscriptions, list_subscriptions
from zaqar_lite.storage.management import ManagementStore

_SUBSCRIBER = "subscriber"
_MAX_ROUNDS = 20
_PAGE = 1_000
MAX_ORDERED = 10
"""Ordered subscriptions of a queue: each post writes a note for each of them."""
_OLD_SECRET_MS = 86_400_000


MakeTrust = Callable[[int], Awaitable[str]]
"""Makes a trust from who asks, for so many seconds, and answers its id."""


class Confirmations(Protocol):
    """What asks a subscriber whether it wants a queue's messages."""

    async def ask(self, subscription: Subscription) -> None:
        """Send a request to confirm, where this server needs one."""

    async def tell_unsubscribed(self, subscription: Subscription) -> None:
        """Send word that the subscription was refused."""


class Subscribed(NamedTuple):
    """A subscription's id, and its secret when it is new."""

    id: str
    secret: str | None


class Subscriptions:
    """What a user may do with subscriptions."""

    def __init__(
        self,
        management: ManagementStore,
        queues: Queues,
        policies: Policies,
        subscribers: Subscribers,
        *,
        confirmations: Confirmations | None,
        limits: Limits,
        clock: Clock,
        refused: Mapping[str, str],
        quota_of: QuotaOf = unlimited,
    ) -> None:
        self._management = management
        self._quota_of = quota_of
        self._queues = queues
        self._policies = policies
        self._subscribers = subscribers
        self._confirmations = confirmations
        self._limits = limits
        self._clock = clock
        self._refused = refused

    def now_ms(self) -> int:
        """The time now, as subscriptions count it."""
        return self._clock.now_ms()

    async def create(
        self,
        queue: QueueRef,
        draft: SubscriptionDraft,
        trust: MakeTrust | None = None,
        *,
        listens: bool = False,
    ) -> Subscribed:
        """Subscribe; a subscriber that is there and not confirmed is asked once more.

        One that `listens` is a connection of this server, which has named it itself. `trust` makes
        a trust where the subscriber gets a token of who asks.

        Raises:
            Invalid: the subscriber or an option is wrong.
            Conflict: the subscriber is there, and confirmed.
            LimitReached: the queue has too many subscriptions.
            QuotaReached: the project has as many as its quota allows.
        """
        subscriber = draft.subscriber or ""
        self._check(queue, None if listens else subscriber, draft.options)
        for _ in range(_MAX_ROUNDS):
            named, there = await self._find(queue, subscriber)
            if there is not None and there.subscriber == subscriber:
                if there.confirmed:
                    raise Conflict("Such a subscription exists already, and is confirmed.")
                if not (await self._policies.get(queue)).subscribed:
                    await self._mark(
                        queue, there
                    )  # who made it has not come to that yet, or crashed
                await self._ask(there)
                return Subscribed(there.id, None)
            await self._check_room(queue)
            if (draft.options or {}).get("ordered"):
                await self._check_lines(queue, "")
            # A name without a subscription is one that somebody makes just now, or a crash left:
            # whoever writes it first under that id has made it.
            is_begun = named is not None and there is None
            made = self._new(_id_in(named) if named and is_begun else None, queue, draft)
            made = await _trusted(made, trust)
            value = made.encode()
            try:
                if not is_begun:
                    await self._name(made, expected=named.version if named else 0)
                await self._management.put_record(
                    KIND, queue.project, made.name, value, expected=0, ttl_ms=made.ttl * 1000
                )
            except RecordChanged:
                continue
            await self._check_quota(made)
            await self._mark(queue, made)
            self._subscribers.forget(queue)
            await self._ask(made)
            return Subscribed(made.id, made.secrets[0].text)
        raise Unavailable("The subscriptions of this queue are being changed too often.")

    async def get(self, queue: QueueRef, subscription_id: str) -> Subscription:
        """Read a subscription.

        Raises:
            NotFound: the queue has no such subscription (any more).
        """
        found = await self._get(queue, subscription_id)
        if found is None:
            raise NotFound(f"Subscription {subscription_id!r} does not exist.")
        return found

    async def page(
        self, queue: QueueRef, *, marker: str | None, limit: int
    ) -> Sequence[Subscription]:
        """List a queue's subscriptions after the id `marker`, in the order of their ids.

        Raises:
            Invalid: the limit is out of range.
        """
        most = self._limits.max_subscriptions_per_page
        if not 1 <= limit <= most:
            raise Invalid(f"Limit must be at least 1 and no greater than {most}.")
        return await list_subscriptions(self._management, queue, after=marker or "", limit=limit)

    async def update(
        self,
        queue: QueueRef,
        subscription_id: str,
        draft: SubscriptionDraft,
        trust: MakeTrust | None = None,
    ) -> None:
        """Change a subscription; options are replaced whole, another subscriber is asked anew.

        Raises:
            Invalid: a value is wrong.
            NotFound: no such subscription.
            Conflict: the queue has another subscription with this subscriber.
        """

        async def change(old: Subscription) -> Subscription:
            new = old
            if draft.options is not None:
                new = replace(new, options=merged_options(old.options, draft.options))
            if draft.ttl is not None:
                new = replace(new, ttl=draft.ttl, renewed_at=self._clock.now_ms())
            if draft.disabled is False:
                new = replace(new, disabled=None)
            if draft.subscriber not in (None, old.subscriber):
                new = replace(
                    new,
                    subscriber=draft.subscriber or "",
                    confirmed=queue_in(draft.subscriber) is not None,
                    token=new_token(),
                )
                named, there = await self._find(queue, new.subscriber)
                if there is not None and there.id != old.id and there.subscriber == new.subscriber:
                    raise Conflict("The queue has another subscription with this subscriber.")
                await self._name(new, expected=named.version if named else 0)
            elif draft.ttl is not None:
                await self._name(new, expected=None)
            if draft.ttl is not None or new.subscriber != old.subscriber:
                new = await _trusted(new, trust)
            return new

        if draft.disabled:
            raise Invalid("A subscription is disabled by the server; delete it to end it.")
        self._check(queue, draft.subscriber, draft.options)
        if (draft.options or {}).get("ordered"):
            await self._check_lines(queue, subscription_id)
        old, new = await self._change(queue, subscription_id, change)
        if new.is_ordered != old.is_ordered:
            await self.mark_ordered(queue, new.id, ordered=new.is_ordered)
        if new.subscriber != old.subscriber:
            await self._unname(old)
            await self._ask(new)

    async def delete(self, queue: QueueRef, subscription_id: str) -> None:
        """End a subscription; no error when it is not there. Nothing is sent to it from now on."""
        there = await self._get(queue, subscription_id)
        if there is None:
            return
        await self._unname(there)
        await self._management.delete_record(KIND, queue.project, there.name)
        self._subscribers.forget(queue)
        if there.is_ordered:
            await self.mark_ordered(queue, there.id, ordered=False)

    async def confirm(
        self, queue: QueueRef, subscription_id: str, *, confirmed: bool, token: str | None
    ) -> None:
        """Confirm a subscription, or refuse it.

        `token` is what the confirmation carried, for a request that only its signature admits;
        None for one of the project itself. A token is good for one answer.

        Raises:
            NotFound: no such subscription, or the token was used.
        """

        async def change(old: Subscription) -> Subscription:
            if token is not None and not hmac.compare_digest(token.encode(), old.token.encode()):
                raise NotFound("This confirmation was answered already.")
            if old.confirmed == confirmed:
                return old
            return replace(old, confirmed=confirmed, token=new_token())

        old, new = await self._change(queue, subscription_id, change)
        if old.confirmed and not new.confirmed and self._confirmations is not None:
            await self._confirmations.tell_unsubscribed(new)

    async def rotate_secret(self, queue: QueueRef, subscription_id: str) -> str:
        """Make a new secret and answer it; the one before signs, too, for another day.

        Raises:
            NotFound: no such subscription.
        """

        async def change(old: Subscription) -> Subscription:
            return old.with_new_secret(self._clock.now_ms() + _OLD_SECRET_MS)

        _, new = await self._change(queue, subscription_id, change)
        return new.secrets[0].text

    async def disable(self, subscription: Subscription, reason: str) -> bool:
        """Stop to deliver to a subscription; tell whether it was not so before."""

        async def change(old: Subscription) -> Subscription:
            if old.disabled is not None or old.subscriber != subscription.subscriber:
                return old
            return old.disabled_now(reason, self._clock.now_ms())

        try:
            old, new = await self._change(subscription.queue, subscription.id, change)
        except NotFound:
            return False
        return old.disabled is None and new.disabled is not None

    async def purge(self, queue: QueueRef) -> None:
        """End all subscriptions of a queue."""
        for subscription in await list_subscriptions(self._management, queue):
            await self.delete(queue, subscription.id)

    async def unmark(self, queue: QueueRef) -> None:
        """Let posts pass over a queue that has no subscription any more.

        A subscription that is made meanwhile counts the mark up, and this does nothing.
        """
        record = await self._management.get_queue(queue)
        if record is None or SUBSCRIBED not in record.metadata:
            return
        if await count_subscriptions(self._management, queue, most=1):
            return
        metadata = {
            name: value
            for name, value in record.metadata.items()
            if name not in (SUBSCRIBED, ORDERED)
        }
        try:
            await self._management.update_queue(replace(record, metadata=metadata))
        except QueueChanged:
            return
        self._policies.forget(queue)

    async def _check_lines(self, queue: QueueRef, subscription_id: str) -> None:
        lines = {*(await self._policies.get(queue)).ordered} - {subscription_id}
        if len(lines) >= MAX_ORDERED:
            raise Invalid(f"A queue may have {MAX_ORDERED} ordered subscriptions.")

    async def _ask(self, subscription: Subscription) -> None:
        if self._confirmations is not None and not subscription.confirmed:
            await self._confirmations.ask(subscription)

    async def mark_ordered(self, queue: QueueRef, subscription_id: str, *, ordered: bool) -> None:
        """Let posts bring their notes to a subscription's line, or not any more."""
        if not is_topic(queue) and await self._management.get_queue(queue) is not None:
            await self._change_marks(queue, subscription_id, ordered=ordered, count=0)

    async def _mark(self, queue: QueueRef, made: Subscription) -> None:
        """Mark the queue's record, which is made unless it is there, by another number."""
        if not is_topic(queue):  # a post to a topic always leaves a note
            await self._change_marks(queue, made.id, ordered=made.is_ordered, count=1)

    async def _change_marks(
        self, queue: QueueRef, subscription_id: str, *, ordered: bool, count: int
    ) -> None:
        for _ in range(_MAX_ROUNDS):
            record = await self._management.get_queue(queue)
            if record is None:
                await self._queues.ensure(queue)
                continue
            metadata = dict(record.metadata)
            metadata[SUBSCRIBED] = record.metadata.get(SUBSCRIBED, 0) + count
            lines = {*metadata.pop(ORDERED, ()), subscription_id}
            if not ordered:
                lines.discard(subscription_id)
            if lines:
                metadata[ORDERED] = sorted(lines)
            if metadata == record.metadata:
                return
            try:
                await self._management.update_queue(
                    QueueRecord(queue, metadata, record.version, record.exposing)
                )
            except QueueChanged:
                continue
            self._policies.forget(queue)
            return
        raise Unavailable(f"The queue {queue.name!r} is being changed too often.")

    async def _change(
        self,
        queue: QueueRef,
        subscription_id: str,
        change: Callable[[Subscription], Awaitable[Subscription]],
    ) -> tuple[Subscription, Subscription]:
        """Change a subscription, exclusive against other changes; answer the old and the new."""
        for _ in range(_MAX_ROUNDS):
            old = await self.get(queue, subscription_id)
            try:
                new = await change(old)
                if new == old:
                    return old, new
                left = old.expires_at - self._clock.now_ms()
                ttl_ms = new.ttl * 1000 if new.renewed_at != old.renewed_at else max(left, 1)
                await self._management.put_record(
                    KIND,
                    queue.project,
                    new.name,
                    new.encode(),
                    expected=old.version,
                    ttl_ms=ttl_ms,
                )
            except RecordChanged:
                continue
            self._subscribers.forget(queue)
            return old, new
        raise Unavailable(f"Subscription {subscription_id!r} is being changed too often.")

    async def _get(self, queue: QueueRef, subscription_id: str) -> Subscription | None:
        if not is_message_id(subscription_id):
            return None
        name = f"{queue.name}/{subscription_id}"
        record = await self._management.get_record(KIND, queue.project, name)
        return None if record is None else Subscription.decode(record)

    def _new(
        self, identifier: str | None, queue: QueueRef, draft: SubscriptionDraft
    ) -> Subscription:
        now = self._clock.now_ms()
        return Subscription(
            identifier or new_message_id(self._clock.now_us()),
            queue,
            draft.subscriber or "",
            self._limits.default_subscription_ttl if draft.ttl is None else draft.ttl,
            draft.options or {},
            created_at=now,
            renewed_at=now,
            confirmed=queue_in(draft.subscriber) is not None,
            secrets=(Secret(new_secret()),),
            token=new_token(),
        )

    async def _find(
        self, queue: QueueRef, subscriber: str
    ) -> tuple[Record | None, Subscription | None]:
        """The record of a subscriber's name, and the live subscription that it stands for.

        That one may have another subscriber by now.
        """
        named = await self._management.get_record(
            _SUBSCRIBER, queue.project, _name_of(queue, subscriber)
        )
        if named is None:
            return None, None
        return named, await self._get(queue, _id_in(named))

    async def _name(self, made: Subscription, *, expected: int | None) -> None:
        await self._management.put_record(
            _SUBSCRIBER,
            made.queue.project,
            _name_of(made.queue, made.subscriber),
            json.dumps({"id": made.id}).encode(),
            expected=expected,
            ttl_ms=made.ttl * 1000,
        )

    async def _unname(self, old: Subscription) -> None:
        """Give a subscriber's name free, unless it stands for another subscription by now."""
        project, name = old.queue.project, _name_of(old.queue, old.subscriber)
        named = await self._management.get_record(_SUBSCRIBER, project, name)
        if named is None or _id_in(named) != old.id:
            return
        try:
            await self._management.delete_record(_SUBSCRIBER, project, name, expected=named.version)
        except RecordChanged:
            return

    async def _check_room(self, queue: QueueRef) -> None:
        most = self._limits.max_subscriptions_per_queue
        if await count_subscriptions(self._management, queue, most=most) >= most:
            raise LimitReached(f"The queue has {most} subscriptions, as many as it may have.")

    async def _check_quota(self, made: Subscription) -> None:
        """Take a new subscription back where the project has more than its quota allows.

        They are counted behind the writing, so of racing ones none is too many; all may be refused.
        """
        project = made.queue.project
        quota = self._quota_of(project).subscriptions
        if quota is None or await self.count(project, most=quota + 1) <= quota:
            return
        await self.delete(made.queue, made.id)
        raise QuotaReached(
            f"The project has {quota} subscriptions, as many as its quota allows: end some, or "
            "ask who runs this server for more."
        )

    async def count(self, project: str, *, most: int) -> int:
        """Count the live subscriptions of a project, up to `most`."""
        found = 0
        after: tuple[str, str] | None = None
        while found < most:
            limit = min(most - found, _PAGE)
            page = await self._management.list_records(KIND, project, after=after, limit=limit)
            found += len(page)
            if len(page) < limit:
                break
            after = (project, page[-1].name)
        return found

    def _check(
        self, queue: QueueRef, subscriber: str | None, options: Mapping[str, object] | None
    ) -> None:
        if is_topic(queue) and (options or {}).get("ordered"):
            raise Invalid(
                "options.ordered must be false for a topic: let a queue subscribe (queue:NAME), "
                "and an ordered subscription to that queue."
            )
        if is_topic(queue) and queue_in(subscriber) is not None:
            check_queue_subscriber(subscriber or "")
        elif subscriber is not None:
            check_subscriber(subscriber, self._refused)
        for name in ("dead_letter_queue", "events_queue"):
            if options is not None and options.get(name) == queue.name:
                raise Invalid(f"options.{name} must be another queue than the queue itself.")


def _id_in(named: Record) -> str:
    return str(json.loads(named.value)["id"])


def _name_of(queue: QueueRef, subscriber: str) -> str:
    return f"{queue.name}/{hashlib.sha256(subscriber.encode()).hexdigest()}"


async def _trusted(subscription: Subscription, make: MakeTrust | None) -> Subscription:
    """The subscription with a trust as long as its life, if it needs one."""
    if not subscription.needs_trust:
        return replace(subscription, trust="")
    if make is None:
        raise Invalid("A subscriber with trust+ needs a request with a token of Keystone.")
    return replace(subscription, trust=await make(subscription.ttl))
