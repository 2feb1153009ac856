"""The rules of topics: create, read, patch, delete, list and post.

A topic is a record. A post to it writes one outbox message for each message, in one step, and
stores nothing else. The workers of the outbox send each to the subscribers; to subscribed queues
they post it (`QueueTarget`). The id of an outbox message is the message's id.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Invalid, LimitReached
from zaqar_lite.domain.json_values import holds_all
from zaqar_lite.domain.limits import Limits, page_limit
from zaqar_lite.domain.metadata import Operation, apply_patch, with_defaults
from zaqar_lite.domain.models import MAX_RECORD, QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted, identify
from zaqar_lite.domain.topics import (
    KIND,
    MAX_TOPICS,
    name_of,
    topic_overlay,
)
from zaqar_lite.domain.yielding import in_steps
from zaqar_lite.service.delivery.outbox import (
    CLIENT_ID,
    Forwarded,
    OutboxMessage,
    encode,
    outbox_queue,
    trace_of,
)
from zaqar_lite.service.post_validation import Draft, PostValidation, check_sealed
from zaqar_lite.service.records import Kind, Most
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore

_GRACE_MS = 60_000
"""How much longer an outbox message lives, so that one that is due at the end is delivered."""


class Topic(NamedTuple):
    """A topic's name and metadata, and the version of its record where it was read."""

    name: str
    metadata: Mapping[str, Any]
    version: int = 0


@dataclass(eq=False, repr=False)
class Topics:
    """What a user may do with topics, but for their subscriptions."""

    management: ManagementStore
    messages: MessageStore
    limits: Limits
    clock: Clock

    def __post_init__(self) -> None:
        self._drafts = PostValidation(self.limits, self.clock)
        self._kind = Kind(
            self.management,
            KIND,
            "Topic",
            encode=_encode,
            reads=lambda record: Topic(record.name, json.loads(record.value), int(record.version)),
            most=Most(MAX_TOPICS, LimitReached, "topics in a project"),
        )

    async def create(self, topic: QueueRef, metadata: Mapping[str, Any]) -> bool:
        """Create a topic; False when it exists, whose metadata then stay as they are.

        Raises:
            Invalid: a reserved attribute is wrong.
            LimitReached: the project has too many topics.
        """
        rules.validate(topic, metadata, self.limits)
        name = name_of(topic)
        made = await self._kind.write(topic.project, name, lambda old: old or Topic(name, metadata))
        return made[1]

    async def exists(self, topic: QueueRef) -> bool:
        """Tell whether there is such a topic."""
        return await self._kind.find(topic.project, name_of(topic)) is not None

    async def metadata(self, topic: QueueRef) -> dict[str, Any]:
        """The metadata with the defaults filled in, also of a topic that is not there."""
        found = await self._kind.find(topic.project, name_of(topic))
        return self.shown({} if found is None else found.metadata)

    def shown(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Metadata with the defaults filled in."""
        return with_defaults(metadata, topic_overlay(self.limits))

    async def patch(self, topic: QueueRef, operations: Sequence[Operation]) -> dict[str, Any]:
        """Change metadata, all operations or none, exclusive against other patches.

        Raises:
            NotFound: no such topic.
            Conflict: an operation on a key that the topic does not have.
            Invalid: the outcome breaks a rule of `create`.
        """

        def change(old: Topic) -> Topic:
            patched = apply_patch(operations, dict(old.metadata), topic_overlay(self.limits))
            rules.validate(topic, patched, self.limits)
            rules.check_size(patched, self.limits)
            return Topic(old.name, patched)

        changed = await self._kind.change(topic.project, name_of(topic), change)
        return self.shown(changed.metadata)

    async def delete(self, topic: QueueRef) -> None:
        """Delete a topic; no error when it is not there. Its subscriptions stay, as a queue's."""
        await self._kind.delete(topic.project, name_of(topic))

    async def purge(self, topic: QueueRef, resource_types: Collection[str]) -> None:
        """Purge nothing: what was posted to a topic is on its way."""

    async def list_topics(
        self,
        project: str,
        *,
        marker: str | None,
        limit: int | None,
        name_contains: str | None,
        metadata: Mapping[str, Any],
    ) -> Sequence[Topic]:
        """List a project's topics by name, after `marker`.

        Raises:
            Invalid: the limit is out of range.
        """
        limit = page_limit(limit, self.limits.max_queues_per_page)
        return await self._kind.page(
            project,
            marker,
            limit,
            keep=lambda topic: (
                (name_contains is None or name_contains in topic.name)
                and holds_all(topic.metadata, metadata)
            ),
        )

    async def admit(self, topic: QueueRef, size: int) -> Topic | None:
        """Refuse a body of `size` bytes; answer what the post is decided by, None without a topic.

        Raises:
            Invalid: larger than the topic or the server allows.
        """
        found = await self._kind.find(topic.project, name_of(topic))
        most = self.limits.max_messages_post_size
        if found is not None:
            most = min(found.metadata.get("_max_messages_post_size") or most, most)
        if size > most:
            raise Invalid(f"The body has {size} bytes; {most} are allowed.")
        return found

    async def post(
        self,
        topic: QueueRef,
        drafts: Sequence[Draft],
        *,
        client_id: str,
        batch_key: str | None,
        admitted: Topic | None,
    ) -> Sequence[Posted]:
        """Write outbox messages for the topic's subscriptions; make the topic unless it is there.

        Raises:
            Invalid: a message breaks a rule; names it by its index.
            KeyReused: a key stands for another message.
        """
        await self._drafts.check(drafts, batch_key)
        async for first, part in in_steps(drafts):
            for index, draft in enumerate(part, first):
                self._drafts.check_times(f"Message {index}", None, self._delay_of(draft))
                check_sealed(f"Message {index}", topic, bytes(draft.body))
        if admitted is None:
            await self.create(topic, {})
            admitted = await self.admit(topic, 0) or Topic("", {})
        whole = batch_key and identify(topic, batch_key, (draft.body for draft in drafts))
        new: list[NewMessage] = []
        async for _, part in in_steps(drafts):
            new += [self._entry(topic, draft, admitted, client_id) for draft in part]
        return await self.messages.post(
            outbox_queue(topic.project),
            new,
            client_id=CLIENT_ID,
            batch_key=_own(topic, whole) if whole else None,
            version=None,
        )

    def _entry(self, topic: QueueRef, draft: Draft, admitted: Topic, client_id: str) -> NewMessage:
        metadata = admitted.metadata
        ttl = draft.ttl or metadata.get("_default_message_ttl")
        delay = self._delay_of(draft)
        if delay is None:
            delay = metadata.get("_default_message_delay")
        seconds = (ttl or self.limits.default_message_ttl) + (delay or 0)
        now = self.clock.now_ms()
        entry = OutboxMessage(
            "",
            topic.project,
            topic.name,
            now,
            now + seconds * 1000,
            ttl or self.limits.default_message_ttl,
            msgspec.Raw(draft.body),
            delay or None,
            version=admitted.version,
            trace=trace_of(draft.headers),
            sent=Forwarded(client_id, ttl, delay, dict(draft.headers) if draft.headers else None),
        )
        key = draft.idempotency_key
        own = None if key is None else _own(topic, identify(topic, key, (draft.body,)))
        return NewMessage(encode(entry), seconds * 1000 + _GRACE_MS, 0, own)

    def _delay_of(self, draft: Draft) -> int | None:
        """The whole seconds that a message waits, never less than until its `deliver_at`."""
        if draft.deliver_at is None:
            return draft.delay
        return max(0, -(-(read_instant(draft.deliver_at) - self.clock.now_ms()) // 1000))


def _encode(topic: Topic) -> bytes:
    encoded = json.dumps(topic.metadata, ensure_ascii=False, separators=(",", ":")).encode()
    if len(encoded) > MAX_RECORD:
        raise Invalid(f"The metadata have {len(encoded)} bytes; {MAX_RECORD} are allowed.")
    return encoded


def _own(topic: QueueRef, key: IdempotencyKey) -> IdempotencyKey:
    """The key as the outbox knows it, which many topics share."""
    digest = blake2b(digest_size=24)
    for part in (topic.project, topic.name, key.text):
        digest.update(b"%d:" % len(part.encode()) + part.encode())
    return IdempotencyKey(f"topic.{digest.hexdigest()}", key.digest)
