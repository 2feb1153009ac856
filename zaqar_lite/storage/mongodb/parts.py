"""What the parts of the two stores have in common."""

from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.guarded_updates import GuardedUpdates
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.keys import Keys
from zaqar_lite.storage.mongodb.queues import Queues
from zaqar_lite.storage.mongodb.readiness import Readiness
from zaqar_lite.storage.store import Store


class Connected(Store):
    """A store over a connection that it shares with the other one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def open(self) -> None:
        """Connect, create and check the indexes; see the seam."""
        await self._connection.open(self)

    async def close(self) -> None:
        """Close the connections unless the other store uses them; see the seam."""
        await self._connection.close(self)

    async def ping(self) -> None:
        """Ask the server for its time; see the seam."""
        await self._connection.now_ms()


class StorePart(Connected, MessageStore):
    """What the operations of the message store use; each module below adds some of them."""

    def __init__(self, connection: Connection, options: StoreOptions) -> None:
        super().__init__(connection)
        self._options = options
        self._queues = Queues(connection)
        self._keys = Keys(connection, options.idempotency_window_ms)
        self._readiness = Readiness(connection)
        self._updates = GuardedUpdates(connection, self._queues, self._readiness)
        self._unremoved: list[Document] = []
        """Filters of what pops of this process have handed out and could not delete."""
