"""Announce to this process's waiting requests what became ready in a queue, and what soon will.

A process does not learn what others do. Where several share the store, a waiting request therefore
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
        """Announce that messages became ready."""
        if count:
            self._announce(container, count)

    def announce_due(self, container: str, until: int) -> None:
        """Announce that something may become ready at an instant."""
        known = self._tails.known(container)
        if known.due_at is not None and until < known.due_at:
            known.due_at = until
        self._announce(container, 0)

    @contextmanager
    def changing(self, container: str) -> Iterator[None]:
        """Enclose writes of leases and delays: when they fail, it is unknown which were written."""
        known = self._tails.known(container)
        known.something_may_be_ready()
        try:
            yield
        except BaseException:
            known.due_at = None
            self.announce_ready(container, 1)
            raise

    def _announce(self, container: str, count: int) -> None:
        if self.listener is not None and container in self._watched:
            self.listener(self._watched[container][0], count)
