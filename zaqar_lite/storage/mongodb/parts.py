"""What the parts of the two stores have in common."""

from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.guarded_updates import GuardedUpdates
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.keys import Keys
from zaqar_lite.storage.mongodb.queues import Queues
from zaqar_lite.storage.mongodb.readiness import Readiness
from zaqar_lite.storage.store import Connected


class StorePart(Connected[Connection], MessageStore):
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
