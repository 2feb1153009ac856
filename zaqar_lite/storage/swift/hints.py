"""Announce to this process's waiting requests what became ready in a queue, and what soon will.

A process does not learn what others do. Where several share the store, a waiting request therefore
looks once a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from zaqar_lite.storage.swift.tail import Tails
from zaqar_lite.storage.watchers import Watchers


class Hints:
    """Announce what happens in watched queues; note when a queue's next message is due."""

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self.watchers = Watchers[str]()
        """By the names of containers."""

    def announce_ready(self, container: str, count: int) -> None:
        """Announce that messages became ready."""
        if count:
            self.watchers.tell(container, count)

    def announce_due(self, container: str, until: int) -> None:
        """Announce that something may become ready at an instant."""
        known = self._tails.known(container)
        if known.due_at is not None and until < known.due_at:
            known.due_at = until
        self.watchers.tell(container, 0)

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
