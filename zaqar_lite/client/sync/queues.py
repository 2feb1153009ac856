# Generated from asynchronous/queues.py by tests/generate_sync.py; change it there.
"""Queues and the service itself: the sync client's methods."""

import datetime as dt
from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

from zaqar_lite.client import queue_options
from zaqar_lite.client.arguments import takes, text, texts, zoned
from zaqar_lite.client.endpoints import queues
from zaqar_lite.client.endpoints.paths import queue_path, with_query
from zaqar_lite.client.endpoints.queues import Options
from zaqar_lite.client.endpoints.resources import NO_QUEUE, ask, list_page, tell
from zaqar_lite.client.models import Done, Queue, Range, SignedURL, Stats
from zaqar_lite.client.queue_options import Ensured
from zaqar_lite.client.records import reader
from zaqar_lite.client.sync.calls import SyncCalls

_RANGE = reader(Range)
_DONE = reader(Done)
_SIGNED = reader(SignedURL)
QUEUES_A_PAGE = 20
"""The server's own `max_queues_per_page`; a client's `page_size` is that of messages."""


class SyncQueues(SyncCalls):
    """Make, read, change, list, count, empty, split and share queues; ask the service."""

    def create_queue(self, queue: str, metadata: Options | None = None) -> bool:
        """Make a queue with these options or metadata; return whether it is new.

        Raises:
            QueueExists: it is there with other options, which stay as they are.
            ValueError: a key begins with `_` and is not an option.
        """
        created = self.call(queues.create_queue(queue, metadata))
        if not created and metadata is not None:
            found = self.get_queue(queue)
            different = queue_options.differing(queue_options.checked(metadata), found)
            if different:
                raise queue_options.exists(queue, different, found)
        return created

    def ensure_queue(self, queue: str, metadata: Options | None = None) -> Ensured:
        """Make a queue with these options or metadata, or change them; return which it was.

        Without any, only that there is one is ensured. Keys that are not given stay as they are.

        Raises:
            ValueError: a key begins with `_` and is not an option.
        """
        if self.call(queues.create_queue(queue, metadata)):
            return Ensured.CREATED
        if metadata is None:
            return Ensured.UNCHANGED
        wanted = queue_options.checked(metadata)
        different = queue_options.differing(wanted, self.get_queue(queue))
        if not different:
            return Ensured.UNCHANGED
        self.update_queue(queue, different)
        return Ensured.CHANGED

    def get_queue(self, queue: str) -> dict[str, Any]:
        """Return a queue's metadata, with the server's defaults for what was not set."""
        return self.call(ask("GET", queue_path(queue), dict, meanings=NO_QUEUE))

    def queue_exists(self, queue: str) -> bool:
        """Return whether somebody has made the queue; `get_queue` shows the defaults if not."""
        for one in self.list_queues(name=text("queue", queue)):
            if one.name == queue:
                return True
        return False

    def update_queue(
        self, queue: str, metadata: Options, *, remove: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Set and remove keys of a queue's metadata, all or none; return what it is then."""
        return self.call(queues.update_queue(queue, metadata, remove))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages; an absent one is no error."""
        self.call(tell("DELETE", queue_path(queue)))

    def list_queues(self, *, detailed: bool = False, name: str | None = None) -> Iterator[Queue]:
        """Yield the project's queues by name, page by page; `name` keeps those containing it."""
        limit = min(self.page_size, QUEUES_A_PAGE)
        return self._items(
            lambda marker: queues.list_queues(
                marker=marker, limit=limit, detailed=detailed, name=name
            )
        )

    def stats(self, queue: str) -> Stats:
        """Count a queue's messages."""
        return self.call(queues.stats(queue))

    def purge(self, queue: str, resource_types: Iterable[str] | None = None) -> None:
        """Delete all "messages" and "subscriptions" of a queue, or only the types named."""
        wanted = None
        if resource_types is not None:
            wanted = {"resource_types": texts("resource_types", resource_types)}
        self.call(tell("POST", queue_path(queue, "purge"), wanted))

    def ranges(self, queue: str, count: int) -> list[Range]:
        """Split what a queue holds now into at most `count` parts, to read them in parallel."""
        takes("count", count, Integral)
        path = with_query(queue_path(queue, "ranges"), count=count)
        return self.call(ask("GET", path, _ranges, meanings=NO_QUEUE))

    def history(self, queue: str, *, state: str = "done") -> Iterator[Done]:
        """Yield what was deleted (`done`), or what `failed`, if the queue keeps a history.

        Failed is what had all its deliveries where there is no dead-letter queue to go to.
        """
        path, limit = queue_path(queue, "history"), min(self.page_size, QUEUES_A_PAGE)
        return self._items(
            lambda marker: list_page(
                path, "messages", _DONE, meanings=NO_QUEUE, state=state, marker=marker, limit=limit
            )
        )

    def share(
        self,
        queue: str,
        *,
        paths: Iterable[str] = ("messages",),
        methods: Iterable[str] = ("GET",),
        expires: dt.datetime | None = None,
    ) -> SignedURL:
        """Make a pre-signed permission for others, a day long unless `expires` says otherwise."""
        wanted: dict[str, object] = {
            "paths": texts("paths", paths),
            "methods": texts("methods", methods),
        }
        zoned("expires", expires)
        if expires is not None:
            wanted["expires"] = expires.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return self.call(ask("POST", queue_path(queue, "share"), _SIGNED, wanted))

    def unshare(self, queue: str) -> None:
        """Revoke all pre-signed permissions of a queue that were made until now."""
        self.call(tell("DELETE", queue_path(queue, "share")))

    def ping(self) -> None:
        """Return normally if the server and its store are up.

        Raises:
            Unavailable: the server is up, its store is not.
            Unreachable: no answer.
        """
        self.call(tell("GET", "/v2/ping"))

    def health(self) -> dict[str, Any]:
        """Return how every operation went when the server tried it now (admin mode only)."""
        return self.call(ask("GET", "/v2/health", dict))

    def home(self) -> dict[str, Any]:
        """Return the home document: which resources this server has."""
        return self.call(queues.home())


def _ranges(document: Any) -> list[Range]:  # noqa: ANN401 - JSON is anything
    return [_RANGE(one) for one in document["ranges"]]
