"""What this process tells its waiting requests: what became ready in a queue, and when it will.

Nobody tells what other processes do. Where several share the store a waiting request therefore
looks once a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.base import Listener
from zaqar_lite.storage.swift.tail import Tails


class Hints:
    """Announce what happens in watched queues; note when a queue's next message is due."""

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self._watched: dict[str, tuple[QueueRef, int]] = {}
        self.listener: Listener | None = None

    def watch(self, container: str, queue: QueueRef) -> None:
        """Begin to announce a queue."""
        _, count = self._watched.get(container, (queue, 0))
        self._watched[container] = (queue, count + 1)

    def unwatch(self, container: str) -> None:
        """End what `watch` began."""
        queue, count = self._watched.pop(container)
        if count > 1:
            self._watched[container] = (queue, count - 1)

    def announce_ready(self, container: str, count: int) -> None:
        """Tell that messages became ready."""
        if count:
            self._tell(container, count)

    def announce_due(self, container: str, until: int) -> None:
        """Tell that something may become ready at an instant."""
        known = self._tails.known(container)
        if known.due_at is not None and until < known.due_at:
            known.due_at = until
        self._tell(container, 0)

    @contextmanager
    def changing(self, container: str) -> Iterator[None]:
        """Enclose writes of leases and delays: where they fail, nobody knows which were written."""
        known = self._tails.known(container)
        known.something_may_be_ready()
        try:
            yield
        except BaseException:
            known.due_at = None
            self.announce_ready(container, 1)
            raise

    def _tell(self, container: str, count: int) -> None:
        if self.listener is not None and container in self._watched:
            self.listener(self._watched[container][0], count)
