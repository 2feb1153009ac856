"""Both stores over one directory, with what the tests of the embedded store do most."""

import json

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import (
    Claimed,
    DeadLetter,
    DelayMode,
    HistoryEntry,
    HistoryState,
    Message,
    NewMessage,
    QueueRef,
    StoreOptions,
)
from zaqar_lite.storage.opendata import create, keys
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.encoding import after_prefix
from zaqar_lite.storage.opendata.keys import RecordType
from zaqar_lite.storage.opendata.management import OpenDataManagementStore
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore

QUEUE, OTHER, THIRD = (QueueRef("project", name) for name in ("queue", "other", "third"))
MINUTE, HOUR = 60_000, 3_600_000


class Store:
    """The two stores, their clock and their database."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.clock = Clock()
        self.passed = 0
        self._make()

    def _make(self) -> None:
        messages, management = create(self.uri, clock=self.clock, options=StoreOptions())
        assert isinstance(messages, OpenDataMessageStore)
        assert isinstance(management, OpenDataManagementStore)
        self.messages, self.management = messages, management
        self.db: Database = messages._db

    async def restart(self) -> None:
        await self.messages.close()
        self._make()
        await self.messages.open()

    async def post(self, *new: str | NewMessage, to: QueueRef = QUEUE) -> list[str]:
        made = [
            NewMessage(json.dumps(item).encode(), HOUR) if isinstance(item, str) else item
            for item in new
        ]
        posted = await self.messages.post(to, made, client_id="producer", version=None)
        return [answer.id for answer in posted]

    async def claim(
        self,
        limit: int = 20,
        *,
        queue: QueueRef = QUEUE,
        client: str = "worker",
        letters: DeadLetter | None = None,
    ) -> Claimed:
        return await self.messages.claim(
            queue, limit=limit, ttl_ms=MINUTE, grace_ms=MINUTE, client_id=client,
            delay_mode=DelayMode.HONOUR, dead_letter=letters, version=None,
        )  # fmt: skip

    async def acknowledge(self, queue: QueueRef = QUEUE, *, client: str = "worker") -> int:
        claimed = await self.claim(queue=queue, client=client)
        if claimed.claim_id is None:
            return 0
        ids = [message.id for message in claimed.messages]
        assert not await self.messages.delete(queue, ids, claim_ids=[claimed.claim_id])
        return len(ids)

    async def history(self, state: HistoryState, limit: int = 20) -> list[HistoryEntry]:
        found: list[HistoryEntry] = []
        marker = None
        while True:
            page = await self.messages.history(QUEUE, state, marker=marker, limit=limit)
            if not page.entries:
                return found
            found += page.entries
            marker = page.marker

    async def sweep(self) -> None:
        for _ in range(50):
            if not (await self.messages.sweep(1_000)).total:
                return
        raise AssertionError("sweeping does not end")

    async def records(self, kind: RecordType) -> dict[bytes, bytes]:
        prefix = keys.prefix(kind)
        found = {}
        async for rows in self.db.engine.scan(prefix, after_prefix(prefix)):
            for key, value in rows:
                assert isinstance(value, bytes)
                found[key] = value
        return found


def texts(messages: Claimed | list[Message]) -> list[str]:
    """The bodies, decoded."""
    found = messages.messages if isinstance(messages, Claimed) else messages
    return [json.loads(message.body) for message in found]
