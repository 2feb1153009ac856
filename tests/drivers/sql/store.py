"""Both stores over one file, with what the tests of the SQL store do most."""

import json
from pathlib import Path
from typing import Self

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Claimed,
    ClaimRequest,
    DelayMode,
    QueueRef,
    RetryPolicy,
    StoreOptions,
)
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InFile
from zaqar_lite.storage.sql.records import SqlManagementStore

QUEUE, OTHER, THIRD = (QueueRef("project", name) for name in ("queue", "other", "third"))
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


class Store:
    """The two stores of a directory, their clock, their database and its place."""

    def __init__(self, directory: Path, options: StoreOptions | None = None) -> None:
        self.directory = directory
        self.options = options or StoreOptions()
        self._make()

    def _make(self) -> None:
        self.clock = Clock()
        uri = f"embedded://{self.directory}"
        messages, management = create(uri, clock=self.clock, options=self.options)
        assert isinstance(messages, SqlMessageStore)
        assert isinstance(management, SqlManagementStore)
        self.messages, self.management = messages, management
        self.db: Database = messages._db
        assert isinstance(self.db.place, InFile)
        self.place = self.db.place

    async def __aenter__(self) -> Self:
        await self.messages.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.messages.close()

    async def restart(self) -> None:
        """Close the store, and open the directory by another one."""
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
        limit: int = 10,
        *,
        queue: QueueRef = QUEUE,
        ttl: int = 10 * MINUTE,
        retries: RetryPolicy = NO_RETRIES,
        mode: DelayMode = DelayMode.IGNORE,
    ) -> Claimed:
        """Claim messages."""
        request = ClaimRequest(
            limit, None, mode, ttl_ms=ttl, grace_ms=MINUTE, client_id="consumer", retries=retries
        )
        return await self.messages.claim(queue, request)

    async def acknowledge(self, claimed: Claimed, *, queue: QueueRef = QUEUE) -> None:
        """Settle all that a claim holds."""
        if claimed.claim_id is not None:
            done = [Settlement(one.id, Act.ACK) for one in claimed.messages]
            await self.messages.settle(queue, claimed.claim_id, done)

    async def sweep(self) -> None:
        """Sweep until nothing is left to do."""
        for _ in range(1_000):
            if not (await self.messages.sweep(1_000)).total:
                return
        raise AssertionError("sweeping does not come to an end")


def message(text: str, *, ttl: int = HOUR, delay: int = 0) -> NewMessage:
    """A message to post, whose body is a text."""
    return NewMessage(json.dumps(text).encode(), ttl, delay)


def texts(claimed: Claimed) -> list[str]:
    """The texts of what a claim handed out."""
    return [json.loads(one.body) for one in claimed.messages]
