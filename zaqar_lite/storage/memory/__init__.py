"""The memory driver: the reference model that every other driver is held to.

Everything is lost with the process. Operations are plain functions on one state, without an await
inside, so that each is one atomic step of the event loop.

As in the embedded driver, `ref` is the QueueRef that the seam calls `queue`, and `queue` is the
object that holds the messages.
"""

from urllib.parse import urlsplit

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.memory.management import MemoryManagementStore
from zaqar_lite.storage.memory.messages import MemoryMessageStore
from zaqar_lite.storage.memory.state import State


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores over one new, empty state; `uri` is `memory://` and nothing more.

    Raises:
        ConfigurationError: the URI has a host, a path or a query, which would mean nothing.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() != "memory" or any(parts[1:]):
        raise ConfigurationError(
            "The memory store has nothing to configure: write 'memory://', and nothing more."
        )
    state = State()
    return MemoryMessageStore(state, clock, options), MemoryManagementStore(state, clock)
