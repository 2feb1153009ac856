"""What this process tells those who wait: what became ready in a queue, and when something will.

Other processes are not heard: who waits looks once a second where several share the store.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from zaqar_lite.domain.models import QueueRef
from zaqar_lite.storage.base import Listener
from zaqar_lite.storage.swift.tail import Tails


class Hints:
    """Announce what happens in watched queues, and remember when each queue is due."""

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

    def ready(self, container: str, count: int) -> None:
        """Tell that messages became ready."""
        if count:
            self._tell(container, count)

    def waits(self, container: str, until: int) -> None:
        """Tell that something may be ready at an instant."""
        known = self._tails.queue(container)
        if known.due_at is not None and until < known.due_at:
            known.due_at = until
        self._tell(container, 0)

    @contextmanager
    def changing(self, container: str) -> Iterator[None]:
        """Write leases and delays; where that fails nobody knows which are written by now."""
        known = self._tails.queue(container)
        known.something_may_be_ready()
        try:
            yield
        except BaseException:
            known.due_at = None
            self.ready(container, 1)
            raise

    def _tell(self, container: str, count: int) -> None:
        if self.listener is not None and container in self._watched:
            self.listener(self._watched[container][0], count)
