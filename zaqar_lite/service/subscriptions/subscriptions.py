"""The rules of subscriptions: make, read, list, change, confirm, delete and purge.

A subscription is a record; a second one, named by a digest of the subscriber, keeps a subscriber
from being there twice. The queue's own record is marked in the same request: so a post learns
without a call of its own whether the queue has subscriptions.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

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
from zaqar_lite.domain.limits import Limits, page_limit
from zaqar_lite.domain.metadata import MAX_ORDERED, ORDERED, SUBSCRIBED
from zaqar_lite.domain.models import QueueRef, RecordBound
from zaqar_lite.domain.quotas import QuotaOf, unlimited
from zaqar_lite.domain.subscriptions import (
    Disabled,
    Secret,
    Subscription,
    SubscriptionDraft,
    merged_options,
    new_secret,
    new_token,
)
from zaqar_lite.domain.topics import KIND as TOPIC
from zaqar_lite.domain.topics import check_subscription, is_topic, name_of, path_of, queue_in
from zaqar_lite.service.background import LoggedErrors
from zaqar_lite.service.delivery.outbox import Delivery, deliver_later, encode
from zaqar_lite.service.identity.trusts import MakeTrust, trusted
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.presigned_urls import PresignedUrls
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.records import Held, Kind, retried
from zaqar_lite.service.subscriptions.subscriber_cache import (
    SubscriberCache,
    subscription_ids,
    subscription_kind,
)
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

ASKS, REFUSED = "SubscriptionConfirmation", "UnsubscribeConfirmation"
_TEXTS = {
    ASKS: "You have chosen to subscribe to the queue: {}. This message was sent to ask whether you "
    "want its messages: send SubscribeBody to URL-Paths by PUT, with the headers of this document.",
    REFUSED: "You have unsubscribed from the queue: {}. To subscribe again, send SubscribeBody to "
    "URL-Paths by PUT, with the headers of this document.",
}
_NAMED = "subscriber"
_OLD_SECRET_MS = 86_400_000
_MAKING_MS = 60_000
"""How long after a name was given its subscription may still be written."""


class _Name(msgspec.Struct):
    """The subscription that a subscriber's name stands for, its ttl (seconds), and since when (ms).

    A name is a digest of the subscriber; its record keeps one from being in a queue twice.
    """

    id: str
    ttl: int = 0
    at: int = 0


class Subscribed(NamedTuple):
    """A subscription's id, and its secret when it is new."""

    id: str
    secret: Secret | None


@dataclass(eq=False, repr=False)
class Confirmation:
    """Send requests to confirm, by the way that deliveries take."""

    messages: MessageStore
    presigned_urls: PresignedUrls
    clock: Clock
    public_url: str | None

    async def send(self, kind: str, subscription: Subscription) -> None:
        """Send what confirms a subscription: to ask for that (ASKS), or after it was refused."""
        queue = subscription.queue
        path = f"{path_of(queue)}/subscriptions/{subscription.id}/confirm"
        until = subscription.expires_at or self.clock.now_ms() + subscription.ttl * 1000
        signed = await self.presigned_urls.sign(
            queue, [path], ["PUT"], datetime.fromtimestamp(until // 1000, UTC)
        )
        document = {
            "Message_Type": kind,
            "Message": _TEXTS[kind].format(name_of(queue)),
            "URL-Signature": signed.signature,
            "URL-Methods": "PUT",
            "URL-Paths": path,
            "X-Project-ID": queue.project,
            "URL-Expires": signed.expires,
            "SubscribeBody": {"confirmed": True, "token": subscription.token},
            "UnsubscribeBody": {"confirmed": False, "token": subscription.token},
            "queue_name": name_of(queue),
        }
        if self.public_url is not None:
            document["WSGISubscribeURL"] = f"{self.public_url.rstrip('/')}{path}"
        delivery = Delivery(
            queue.project,
            queue.name,
            subscription.id,
            subscription.confirmation_id,
            until,
            msgspec.Raw(encode(document)),
            kind=kind,
        )
        await deliver_later(self.messages, [(delivery, 0.0)], self.clock.now_ms())


@dataclass(eq=False, repr=False)
class Subscriptions:
    """What a user may do with subscriptions."""

    management: ManagementStore
    queues: Queues
    policies: Policies
    subscriber_cache: SubscriberCache
    confirmations: Confirmation | None
    limits: Limits
    clock: Clock
    refused: Mapping[str, str]
    quota_of: QuotaOf = unlimited
    left: Callable[[Subscription], None] = lambda _: None
    """Called with a subscription that has ended, or has another trust."""

    def __post_init__(self) -> None:
        self.kind = subscription_kind(self.management, self.clock)
        self._names = Kind(
            self.management, _NAMED, "The subscriber", _Name, lives=lambda name: name.ttl * 1000
        )
        self.flags = QueueFlags(self.management, self.queues, self.policies)
        """The flags by which a post knows that its queue has subscriptions."""

    @retried("The list of subscribers")
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
        a trust where the subscriber gets a token of the request's user.

        Raises:
            Invalid: the subscriber or an option is wrong.
            Conflict: the subscriber is there, and confirmed.
            LimitReached: the queue has too many subscriptions, or the project too many queues.
            QuotaReached: the project has as many of either as its quota allows.
            Unavailable: they are being changed too often.
        """
        subscriber = draft.subscriber or ""
        check_subscription(queue, None if listens else subscriber, draft.options, self.refused)
        name, version, existing = await self._find_by(queue, subscriber)
        if existing is not None:
            if not await self.flags.are_set(existing):
                # The request that made it has not come to that yet, or crashed.
                await self._note(existing)
            if existing.confirmed:
                raise Conflict("Such a subscription exists already, and is confirmed.")
            await self._ask(existing)
            return Subscribed(existing.id, None)
        # A name without a subscription: another request is making it now, or one that made it
        # has crashed. The first to write it under that id has made it.
        made = self._new(None if name is None else name.id, queue, draft)
        made = await trusted(made, trust)
        named_at = 0
        try:
            # Named again where that is begun: who was refused must not take this name away.
            named_at = await self._name(made, expected=version)
            await self.kind.put(queue.project, made.name, made, 0, [*self._bounds_of(queue)])
        except (RecordChanged, LimitReached) as exc:
            if isinstance(exc, LimitReached):
                await self._release_name(made, named_at)  # unless another request is making it
            self.left(made)
            raise
        try:
            await self._note(made)
        except (Invalid, LimitReached):  # of ordered ones in the queue, or of queues
            await self.delete(queue, made.id)
            raise
        self.subscriber_cache.forget(queue)
        await self._ask(made)
        return Subscribed(made.id, made.secrets[0])

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
        self, queue: QueueRef, *, marker: str | None, limit: int | None
    ) -> Sequence[Subscription]:
        """List a queue's subscriptions after the id `marker`, in the order of their ids.

        Raises:
            Invalid: the limit is out of range.
        """
        limit = page_limit(limit, self.limits.max_subscriptions_per_page)
        return await self.kind.page(queue.project, marker, limit, prefix=f"{queue.name}/")

    async def update(
        self,
        queue: QueueRef,
        subscription_id: str,
        draft: SubscriptionDraft,
        trust: MakeTrust | None = None,
    ) -> None:
        """Change a subscription; options are replaced whole, another subscriber is asked anew.

        Another ttl or subscriber needs another trust; so does one that is enabled again.

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
                new = replace(new, ttl=draft.ttl, renewed_at=self.clock.now_ms())
            if draft.disabled is False:
                new = replace(new, disabled=None)
            if draft.subscriber not in (None, old.subscriber):
                new = replace(
                    new,
                    subscriber=draft.subscriber or "",
                    confirmed=queue_in(draft.subscriber) is not None,
                    token=new_token(),
                )
                name, version, existing = await self._find_by(queue, new.subscriber, own=old.id)
                if existing is not None and existing.id != old.id:
                    raise Conflict("The queue has another subscription with this subscriber.")
                if existing is None and name is not None:
                    raise RecordChanged("Another request is making it.")
                await self._name(new, expected=version)
            elif draft.ttl is not None:
                await self._name(new, expected=None)
            if (draft.ttl, new.subscriber, new.disabled) != (None, old.subscriber, old.disabled):
                new = await trusted(new, trust)
            return new

        if draft.disabled:
            raise Invalid("A subscription is disabled by the server; delete it to end it.")
        check_subscription(queue, draft.subscriber, draft.options, self.refused)
        before = await self.get(queue, subscription_id)
        becomes_ordered = bool((draft.options or {}).get("ordered")) and not before.is_ordered
        if becomes_ordered:
            await self.flags.note(queue, subscription_id, ordered=True)
        try:
            old, new = await self._change(queue, subscription_id, change)
        finally:
            if draft.options is not None and not is_topic(queue):  # which has no flags
                with suppress(Unavailable):  # who delivers the next message in order does it
                    await self.match_flags(queue, subscription_id)
        if new.subscriber != old.subscriber:
            await self._release_name(old)
        if draft.subscriber is not None:  # also who could not be asked when this was changed
            await self._ask(new)

    async def delete(self, queue: QueueRef, subscription_id: str) -> None:
        """End a subscription; no error when it is not there. Nothing is sent to it from now on.

        One that can't be read ends, too. The name of its subscriber is then as one that a crash
        left, and its trust ends as one that is in no subscription.
        """
        try:
            existing = await self._get(queue, subscription_id)
            if existing is None:
                return
        except Unavailable:  # if the store is away, the deletion below raises too
            existing = None
        name = None if existing is None else await self._name_held_by(existing)
        await self.kind.delete(queue.project, f"{queue.name}/{subscription_id}")
        self.subscriber_cache.forget(queue)
        if existing is not None:
            self.subscriber_cache.end(existing)
            self.left(existing)
        # It has ended; others learn it within a second. If its name went first and the deletion
        # failed, its subscriber could be there twice.
        with suppress(Unavailable, RecordChanged):  # another one may have been made under its name
            if name is not None:
                await name.delete()
            await self.flags.note(queue, subscription_id, ordered=False)

    async def confirm(
        self, queue: QueueRef, subscription_id: str, *, confirmed: bool, token: str | None
    ) -> None:
        """Confirm a subscription, or refuse it.

        `token` is what the confirmation carried, for a request that only its signature admits;
        None for one of the project itself. A token is good for one answer.

        Raises:
            NotFound: no such subscription, or the token was used.
        """

        def change(old: Subscription) -> Subscription:
            if token is not None and not hmac.compare_digest(token.encode(), old.token.encode()):
                raise NotFound("This confirmation was answered already.")
            if old.confirmed == confirmed:
                return old
            return replace(old, confirmed=confirmed, token=new_token())

        old, new = await self._change(queue, subscription_id, change)
        if old.confirmed and not new.confirmed and self.confirmations is not None:
            with LoggedErrors("telling a subscriber that it was unsubscribed"):
                await self.confirmations.send(REFUSED, new)

    async def rotate_secret(self, queue: QueueRef, subscription_id: str) -> str:
        """Make a new secret and answer it; the one before signs, too, for another day.

        Raises:
            NotFound: no such subscription.
        """
        until = self.clock.now_ms() + _OLD_SECRET_MS
        _, new = await self._change(queue, subscription_id, lambda old: old.with_new_secret(until))
        return new.secrets[0].text

    async def disable(self, subscription: Subscription, reason: str) -> bool:
        """Stop delivering to a subscription; answer whether it was enabled before."""

        def change(old: Subscription) -> Subscription:
            if old.disabled is not None or old.subscriber != subscription.subscriber:
                return old
            return replace(old, disabled=Disabled(reason, self.clock.now_ms()))

        try:
            old, new = await self._change(subscription.queue, subscription.id, change)
        except NotFound:
            return False
        return old.disabled is None and new.disabled is not None

    async def purge(self, queue: QueueRef) -> None:
        """End all subscriptions of a queue."""
        for subscription_id in await subscription_ids(self.management, queue):
            await self.delete(queue, subscription_id)

    async def _note(self, made: Subscription) -> None:
        await self.flags.note(made.queue, made.id, ordered=made.is_ordered, makes=True)

    async def match_flags(self, queue: QueueRef, subscription_id: str) -> None:
        """Let a queue's flags say what a subscription is, though others change it meanwhile."""
        while found := await self._get(queue, subscription_id):
            if await self.flags.are_set(found):
                return
            await self._note(found)

    async def _ask(self, subscription: Subscription) -> None:
        if self.confirmations is not None and not subscription.confirmed:
            await self.confirmations.send(ASKS, subscription)

    async def _change(
        self,
        queue: QueueRef,
        subscription_id: str,
        change: Callable[[Subscription], Subscription | Awaitable[Subscription]],
    ) -> tuple[Subscription, Subscription]:
        """Change a subscription, exclusive against other changes; answer the old and the new."""
        old = await self.get(queue, subscription_id)

        def changed(found: Subscription) -> Subscription | Awaitable[Subscription]:
            nonlocal old
            old = found
            return change(found)

        new = await self.kind.change(queue.project, old.name, changed)
        if new.trust != old.trust or new.disabled is not None:
            self.left(old)
        self.subscriber_cache.forget(queue)
        return old, new

    def _bounds_of(self, queue: QueueRef) -> Iterator[RecordBound]:
        """The bounds of new subscriptions: of their queue, and of their project's quota."""
        most, quota = self.limits.max_subscriptions_per_queue, self.quota_of(queue.project)
        full = LimitReached(f"The queue has {most} subscriptions, as many as it may have.")
        yield RecordBound(most, full, prefix=f"{queue.name}/")
        if quota.subscriptions is not None:
            full = QuotaReached(f"{quota.subscriptions} subscriptions", "end some")
            yield RecordBound(quota.subscriptions, full)

    async def _name(self, made: Subscription, *, expected: int | None) -> int:
        """Let its subscriber's name stand for a subscription; answer the name's version.

        Raises:
            RecordChanged: the name is not at the version `expected` (0: there is none).
        """
        key = _name_of(made.queue, made.subscriber)
        name = _Name(made.id, made.ttl, self.clock.now_ms())
        return await self._names.put(made.queue.project, key, name, expected)

    async def _name_held_by(self, old: Subscription) -> Held[_Name] | None:
        """The name of its subscriber, unless that stands for another subscription by now."""
        key = _name_of(old.queue, old.subscriber)
        name, version = await self._names.read(old.queue.project, key)
        if name is None or name.id != old.id:
            return None
        return Held(self._names, old.queue.project, key, name, version)

    async def _release_name(self, old: Subscription, version: int | None = None) -> None:
        """Release a name at a version, or at any; one that stays stands for nothing."""
        with suppress(RecordChanged, Unavailable):
            name = await self._name_held_by(old)
            if name is not None and version in (None, name.version):
                await name.delete()

    async def _find_by(
        self, queue: QueueRef, subscriber: str, *, own: str = ""
    ) -> tuple[_Name | None, int, Subscription | None]:
        """The name of a subscriber, its version, and what it stands for.

        There is no name, but a version, where what it stood for has another subscriber, or was not
        made within a minute. `own` is the id of a subscription that is about to get the name.

        Raises:
            RecordChanged: what it stands for was changed meanwhile.
        """
        name, version = await self._names.read(queue.project, _name_of(queue, subscriber))
        if name is None:
            return None, version, None
        existing = await self._get(queue, name.id)
        if existing is None:
            is_left = self.clock.now_ms() - name.at > _MAKING_MS
            return None if is_left else name, version, None
        if existing.subscriber == subscriber:
            return name, version, existing
        if existing.id != own:
            # Another request may be about to give it this subscriber: that fails, and looks again.
            await self.kind.put(queue.project, existing.name, existing, existing.version)
        return None, version, None

    async def _get(self, queue: QueueRef, subscription_id: str) -> Subscription | None:
        if not is_message_id(subscription_id):
            return None
        return await self.kind.find(queue.project, f"{queue.name}/{subscription_id}")

    def _new(
        self, identifier: str | None, queue: QueueRef, draft: SubscriptionDraft
    ) -> Subscription:
        now = self.clock.now_ms()
        return Subscription(
            identifier or new_message_id(self.clock.now_us()),
            queue,
            draft.subscriber or "",
            self.limits.default_subscription_ttl if draft.ttl is None else draft.ttl,
            draft.options or {},
            created_at=now,
            renewed_at=now,
            confirmed=queue_in(draft.subscriber) is not None,
            secrets=(Secret(new_secret()),),
            token=new_token(),
        )


def _name_of(queue: QueueRef, subscriber: str) -> str:
    return f"{queue.name}/{hashlib.sha256(subscriber.encode()).hexdigest()}"


class QueueFlags:
    """Set and clear the flags of queues.

    A topic has none, as its posts always leave an outbox message; its record is written anew, so
    that its version tells how old a list of its subscriptions is.
    """

    def __init__(self, management: ManagementStore, queues: Queues, policies: Policies) -> None:
        self._management = management
        self._queues = queues
        self._policies = policies

    async def are_set(self, made: Subscription) -> bool:
        """Tell whether the queue's flags say what a subscription is."""
        record = await self._management.get_queue(made.queue)
        if record is None or SUBSCRIBED not in record.metadata:
            return False
        return made.is_ordered == (made.id in record.metadata.get(ORDERED, ()))

    async def clear(self, queue: QueueRef) -> None:
        """Let posts pass over a queue that has no subscription any more.

        A subscription that is made meanwhile counts the flag up, and this does nothing.
        """
        record = await self._management.get_queue(queue)
        if record is None or SUBSCRIBED not in record.metadata:
            return
        if await subscription_ids(self._management, queue, most=1):
            return
        metadata = dict(record.metadata)
        metadata.pop(SUBSCRIBED)
        metadata.pop(ORDERED, None)
        try:
            await self._management.update_queue(replace(record, metadata=metadata))
        except QueueChanged:
            return
        self._policies.forget(queue)

    @retried("The list of subscribers")
    async def note(
        self, queue: QueueRef, subscription_id: str, *, ordered: bool, makes: bool = False
    ) -> None:
        """Let all processes learn that a subscription is new, or ended, or is `ordered` now or not.

        Posts bring their messages to the own queues of those that are. If the queue has no record,
        nothing is noted, unless this `makes` one.

        Raises:
            Invalid: the queue has as many ordered subscriptions as it may.
        """
        if is_topic(queue):
            topic = await self._management.get_record(TOPIC, queue.project, name_of(queue))
            if topic is not None:  # one that is made later is newer than all before
                await self._management.put_record(
                    TOPIC, queue.project, topic.name, topic.value, expected=topic.version
                )
            return
        record = await self._management.get_queue(queue)
        if record is None and not makes:
            return
        if record is None:
            await self._queues.ensure(queue)
            raise QueueChanged("It was made just now.")
        metadata = dict(record.metadata)
        metadata[SUBSCRIBED] = record.metadata.get(SUBSCRIBED, 0) + 1
        others = {*metadata.pop(ORDERED, ())} - {subscription_id}
        if ordered:
            if len(others) >= MAX_ORDERED:
                raise Invalid(f"A queue may have {MAX_ORDERED} ordered subscriptions.")
            others.add(subscription_id)
        if others:
            metadata[ORDERED] = sorted(others)
        await self._management.update_queue(replace(record, metadata=metadata))
        self._policies.forget(queue)
