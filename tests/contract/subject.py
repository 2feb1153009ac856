"""A queue as the tests speak of it: texts for bodies, and defaults for what does not matter."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.contract.stores import Stores
from zaqar_lite.domain.idempotency import identify
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import (
    DEFAULT_PRIORITY,
    Claim,
    Claimed,
    Copy,
    DeadLetter,
    DelayMode,
    IdempotencyKey,
    Message,
    NewMessage,
    Page,
    Posted,
    QueueRef,
    Refusal,
    Stats,
)

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def encode(text: str) -> bytes:
    """The body that stands for a text."""
    return json.dumps(text).encode()


def texts(messages: Iterable[Message]) -> list[str]:
    """The texts of messages, in their order."""
    return [json.loads(message.body) for message in messages]


def ids(messages: Iterable[Message]) -> list[str]:
    """The ids of messages, in their order."""
    return [message.id for message in messages]


def identify_body(key: str, *bodies: bytes) -> IdempotencyKey:
    """A key that stands for these bodies, in whatever queue."""
    return identify(QueueRef("any", "any"), key, bodies)


def new(
    text: str,
    *,
    ttl: int = HOUR,
    delay: int = 0,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    priority: int = DEFAULT_PRIORITY,
    copies: tuple[Copy, ...] = (),
) -> NewMessage:
    """A message to post; durations in milliseconds."""
    body = encode(text)
    return NewMessage(
        body,
        ttl,
        delay,
        None if key is None else identify_body(key, body),
        headers,
        priority,
        copies,
    )


@dataclass(frozen=True)
class QueueUnderTest:
    """One queue of one pair of stores; durations in milliseconds."""

    stores: Stores
    ref: QueueRef

    def at(self, stores: Stores) -> "QueueUnderTest":
        """The same queue, through another pair of stores."""
        return QueueUnderTest(stores, self.ref)

    def named(self, name: str) -> "QueueUnderTest":
        """Another queue of the project."""
        return QueueUnderTest(self.stores, QueueRef(self.ref.project, name))

    def as_dead_letter_queue(self, max_claims: int, ttl: int | None = None) -> DeadLetter:
        """The policy of a queue whose dead letters go here."""
        return DeadLetter(self.ref, max_claims, ttl)

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.stores.clock.advance(milliseconds)

    async def post(
        self,
        *what: str | NewMessage,
        ttl: int = HOUR,
        delay: int = 0,
        client: str = "producer",
        batch_key: str | None = None,
        version: int | None = None,
    ) -> list[str]:
        """Post texts or messages; answer the ids."""
        posted = await self.post_all(
            [new(item, ttl=ttl, delay=delay) if isinstance(item, str) else item for item in what],
            client=client,
            batch_key=batch_key,
            version=version,
        )
        return [answer.id for answer in posted]

    async def post_all(
        self,
        messages: Sequence[NewMessage],
        *,
        client: str = "producer",
        batch_key: str | None = None,
        version: int | None = None,
    ) -> Sequence[Posted]:
        """Post messages; answer what became of each."""
        bodies = [message.body for message in messages]
        key = None if batch_key is None else identify_body(batch_key, *bodies)
        return await self.stores.messages.post(
            self.ref, messages, client_id=client, batch_key=key, version=version
        )

    async def page(
        self,
        *,
        after: Marker | int | None = None,
        until: Marker | int | None = None,
        limit: int = 100,
        exclude: str | None = None,
        claimed: bool = True,
        delayed: bool = True,
        version: int | None = None,
    ) -> Page:
        """One page of the listing."""
        return await self.stores.messages.list_messages(
            self.ref,
            marker=Marker(after) if isinstance(after, int) else after,
            until=Marker(until) if isinstance(until, int) else until,
            limit=limit,
            exclude_client_id=exclude,
            include_claimed=claimed,
            include_delayed=delayed,
            version=version,
        )

    async def listed(
        self,
        *,
        limit: int = 100,
        exclude: str | None = None,
        claimed: bool = True,
        delayed: bool = True,
        after: Marker | int | None = None,
    ) -> list[Message]:
        """All messages of the listing, page by page."""
        found: list[Message] = []
        while True:
            page = await self.page(
                after=after, limit=limit, exclude=exclude, claimed=claimed, delayed=delayed
            )
            if not page.messages:
                return found
            found += page.messages
            after = page.marker

    async def bodies(self) -> list[str]:
        """The texts of all live messages, in order."""
        return texts(await self.listed())

    async def get(self, *message_ids: str) -> Sequence[Message]:
        """Fetch messages by id."""
        return await self.stores.messages.get_messages(self.ref, message_ids)

    async def get_one(self, message_id: str) -> Message:
        """Fetch a message that is there."""
        (message,) = await self.get(message_id)
        return message

    async def claim(
        self,
        limit: int = 10,
        *,
        ttl: int = 10 * MINUTE,
        grace: int = MINUTE,
        client: str = "consumer",
        mode: DelayMode = DelayMode.IGNORE,
        dead_letter: DeadLetter | None = None,
        version: int | None = None,
    ) -> Claimed:
        """Claim messages."""
        return await self.stores.messages.claim(
            self.ref,
            limit=limit,
            ttl_ms=ttl,
            grace_ms=grace,
            client_id=client,
            delay_mode=mode,
            dead_letter=dead_letter,
            version=version,
        )

    async def claim_id(
        self, limit: int = 10, *, ttl: int = 10 * MINUTE, grace: int = MINUTE
    ) -> str:
        """Claim messages that must be there; answer the claim's id."""
        claimed = await self.claim(limit, ttl=ttl, grace=grace)
        assert claimed.claim_id is not None
        return claimed.claim_id

    async def pop(
        self,
        limit: int = 10,
        *,
        mode: DelayMode = DelayMode.IGNORE,
        dead_letter: DeadLetter | None = None,
        version: int | None = None,
    ) -> Claimed:
        """Pop messages."""
        return await self.stores.messages.pop(
            self.ref, limit=limit, delay_mode=mode, dead_letter=dead_letter, version=version
        )

    async def get_claim(self, claim_id: str) -> Claim:
        """Read a claim."""
        return await self.stores.messages.get_claim(self.ref, claim_id)

    async def renew(self, claim_id: str, *, ttl: int = 10 * MINUTE, grace: int = MINUTE) -> None:
        """Renew a claim."""
        await self.stores.messages.renew(self.ref, claim_id, ttl_ms=ttl, grace_ms=grace)

    async def release(self, claim_id: str) -> None:
        """Release a claim."""
        await self.stores.messages.release(self.ref, claim_id)

    async def delete(
        self, *message_ids: str, claims: Collection[str] | None = None
    ) -> Sequence[Refusal]:
        """Delete messages."""
        return await self.stores.messages.delete(self.ref, message_ids, claim_ids=claims)

    async def edit(
        self,
        message_id: str,
        text: str | None = None,
        *,
        ttl: int | None = None,
        delay: int | None = None,
        version: int | None = None,
    ) -> Message:
        """Edit a message."""
        return await self.stores.messages.edit(
            self.ref,
            message_id,
            body=None if text is None else encode(text),
            ttl_ms=ttl,
            delay_ms=delay,
            version=version,
        )

    async def stats(self) -> Stats:
        """Count the messages."""
        return await self.stores.messages.stats(self.ref)

    async def counts(self) -> tuple[int, int, int]:
        """Count the ready, delayed and claimed messages."""
        stats = await self.stats()
        return stats.ready, stats.delayed, stats.claimed

    async def expose(self, limit: int = 100) -> int:
        """Make delayed messages ready."""
        return await self.stores.messages.expose(self.ref, limit)

    async def purge(self) -> None:
        """Remove all messages."""
        await self.stores.messages.purge(self.ref)

    async def drop(self) -> None:
        """Remove the queue."""
        await self.stores.messages.drop(self.ref)

    async def sweep(self) -> None:
        """Sweep until nothing is left to do."""
        for _ in range(100):
            if not (await self.stores.messages.sweep(1_000)).total:
                return
        raise AssertionError("sweeping does not come to an end")
