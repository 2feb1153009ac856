"""Both stores over one file, or in RAM."""

import asyncio
from pathlib import Path

from tests.drivers.store import QUEUE, BothStores
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, QueueRef, StoreOptions
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InFile
from zaqar_lite.storage.sql.records import SqlManagementStore

RAM = "memory://"


class Store(BothStores):
    """The two stores of a directory or of RAM, their clock and their database."""

    def __init__(
        self, where: Path | str, options: StoreOptions | None = None, clock: Clock | None = None
    ) -> None:
        self.uri = where if isinstance(where, str) else f"embedded://{where}"
        self.options = options or StoreOptions()
        self._clock = clock
        self._make()

    def _make(self) -> None:
        self.clock = self._clock or Clock()
        messages, management = create(self.uri, clock=self.clock, options=self.options)
        assert isinstance(messages, SqlMessageStore)
        assert isinstance(management, SqlManagementStore)
        self.messages, self.management = messages, management
        self.db = messages._db

    @property
    def place(self) -> InFile:
        """The place of a store that is in a file."""
        assert isinstance(self.db.place, InFile)
        return self.db.place

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        return int(self.db.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608 - ours

    async def found(self, statement: str) -> None:
        """Wait until a statement finds a row."""
        while not self.db.execute(statement).get:  # noqa: ASYNC110 - the test's own poll
            await asyncio.sleep(0)

    async def is_syncing(self) -> None:
        """Wait until a batch is on its way to the disk."""
        while self.db._syncing is None:  # noqa: ASYNC110 - the test's own poll
            await asyncio.sleep(0)

    async def acknowledge(self, claimed: Claimed, queue: QueueRef = QUEUE) -> None:
        """Settle all that a claim holds."""
        if claimed.claim_id is not None:
            done = [Settlement(one.id, Act.ACK) for one in claimed.messages]
            await self.messages.settle(queue, claimed.claim_id, done)
