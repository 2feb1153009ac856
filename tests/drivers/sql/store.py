"""Both stores over one file."""

from pathlib import Path

from tests.drivers.store import QUEUE, BothStores
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import Claimed, QueueRef, StoreOptions
from zaqar_lite.domain.settlements import Act, Settlement
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InFile
from zaqar_lite.storage.sql.records import SqlManagementStore


class Store(BothStores):
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

    async def acknowledge(self, claimed: Claimed, queue: QueueRef = QUEUE) -> None:
        """Settle all that a claim holds."""
        if claimed.claim_id is not None:
            done = [Settlement(one.id, Act.ACK) for one in claimed.messages]
            await self.messages.settle(queue, claimed.claim_id, done)
