"""Both stores of one place, with what the tests of the stores that keep tables do most."""

import json
from collections.abc import Iterable
from typing import Self

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.ids import Marker
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claimed,
    ClaimRequest,
    DelayMode,
    ListQuery,
    Message,
    QueueRef,
    RetryPolicy,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql.database import Database

QUEUE, OTHER, THIRD = (QueueRef("project", name) for name in ("queue", "other", "third"))
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


class BothStores:
    """Posts, claims and reads texts; `lease` and `mode` are those of a claim that says nothing."""

    messages: MessageStore
    management: ManagementStore
    clock: Clock
    db: Database
    lease = 10 * MINUTE
    mode = DelayMode.IGNORE

    async def __aenter__(self) -> Self:
        await self.messages.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.messages.close()

    def _make(self) -> None:
        """Make the stores, as another process does."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Close the store, and open its place by another one."""
        await self.messages.close()
        self._make()
        await self.messages.open()

    async def post(self, *what: str | NewMessage, to: QueueRef = QUEUE) -> list[str]:
        """Post texts, or messages as they are; answer their ids."""
        new = [message(one) if isinstance(one, str) else one for one in what]
        posted = await self.messages.post(to, new, client_id="producer", version=None)
        return [one.id for one in posted]

    async def claim(
        self,
        limit: int = 20,
        *,
        queue: QueueRef = QUEUE,
        ttl: int = 0,
        grace: int = MINUTE,
        client: str = "worker",
        retries: RetryPolicy = NO_RETRIES,
        mode: DelayMode | None = None,
        removes: bool = False,
    ) -> Claimed:
        """Claim messages, or pop them."""
        request = ClaimRequest(
            limit, None, mode or self.mode, ttl_ms=ttl or self.lease, grace_ms=grace,
            client_id=client, retries=retries, removes=removes,
        )  # fmt: skip
        return await self.messages.claim(queue, request)

    async def release(self, claimed: Claimed, queue: QueueRef = QUEUE, delay: int = 0) -> None:
        """Release a claim."""
        settlement = Settlement("", Act.RELEASE, delay_ms=delay)
        await self.messages.settle(queue, claimed.claim_id or "", settlement)

    async def next_due(self, queue: QueueRef = QUEUE) -> int | None:
        """When a message next becomes ready by time."""
        watch = await self.messages.watch(queue, lambda _: None)
        watch.end()
        return await watch.next_due()

    async def sweep(self) -> None:
        """Sweep until nothing is left to do."""
        for _ in range(1_000):
            if not (await self.messages.sweep(1_000)).total:
                return
        raise AssertionError("sweeping does not come to an end")

    async def counts(self, queue: QueueRef = QUEUE) -> tuple[int, int, int]:
        """Count the ready, delayed and claimed messages."""
        stats = await self.messages.stats(queue)
        return stats.ready, stats.delayed, stats.claimed

    async def all_messages(
        self, queue: QueueRef = QUEUE, *, details: bool = False
    ) -> list[Message]:
        """All messages of a queue, in order."""
        found: list[Message] = []
        marker = None
        while True:
            wanted = ListQuery(
                1_000, marker, include_claimed=True, include_delayed=True, details=details
            )
            page = await self.messages.list_messages(queue, wanted)
            if not page.messages:
                return found
            found += page.messages
            marker = None if page.marker is None else Marker(page.marker)

    async def bodies(self, queue: QueueRef = QUEUE) -> list[str]:
        """The texts of all messages of a queue, in order."""
        return texts(await self.all_messages(queue))


def message(text: str, *, ttl: int = HOUR, delay: int = 0) -> NewMessage:
    """A message to post, whose body is a text."""
    return NewMessage(json.dumps(text).encode(), ttl, delay)


def texts(messages: Claimed | Iterable[Message]) -> list[str]:
    """The texts of messages, or of what a claim handed out."""
    found = messages.messages if isinstance(messages, Claimed) else messages
    return [json.loads(one.body) for one in found]
