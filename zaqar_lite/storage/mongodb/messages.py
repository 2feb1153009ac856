"""The message store: its operations are in the modules of its parts."""

from zaqar_lite.domain.models import Capability, QueueRef
from zaqar_lite.storage.base import Listener
from zaqar_lite.storage.mongodb.changing import Changing
from zaqar_lite.storage.mongodb.errors import translating
from zaqar_lite.storage.mongodb.listing import Listing
from zaqar_lite.storage.mongodb.posting import Posting
from zaqar_lite.storage.mongodb.readiness import POLL_INTERVAL_MS
from zaqar_lite.storage.mongodb.sweeping import Sweeping


@translating
class MongoMessageStore(Posting, Changing, Listing, Sweeping):
    """Messages and claims in MongoDB; shared by any number of processes."""

    poll_interval_ms = POLL_INTERVAL_MS
    capabilities = frozenset(
        {Capability.ATOMIC_BATCH, Capability.EXCLUSIVE, Capability.DURABLE, Capability.SHARED}
    )

    async def close(self) -> None:
        """Finish the posts, and close the connections if nobody else uses them; see the seam."""
        await self._group_commit.close()
        await self._readiness.close()
        await super().close()

    def listen(self, listener: Listener) -> None:
        """Announce to `listener` what became ready; see the seam."""
        self._readiness.listen(listener)

    async def watch(self, queue: QueueRef) -> None:
        """Begin to announce a queue; see the seam."""
        await self._readiness.watch(queue)

    async def unwatch(self, queue: QueueRef) -> None:
        """End what `watch` began."""
        self._readiness.unwatch(queue)
