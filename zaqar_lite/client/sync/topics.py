# Generated from asynchronous/topics.py by tests/generate_sync.py; change it there.
"""Topics: the sync client's methods."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zaqar_lite.client.endpoints import queues
from zaqar_lite.client.endpoints.paths import Topic
from zaqar_lite.client.models import Queue
from zaqar_lite.client.sync.queues import QUEUES_A_PAGE, SyncQueues


class SyncTopics(SyncQueues):
    """Make, read, change, list and delete topics.

    For the rest the methods of queues take a `Topic`: `post(Topic("orders"), body)`,
    `subscribe(Topic("orders"), "queue:billing")`, `list_subscriptions`, `purge`, `share`.
    """

    def create_topic(self, topic: str, metadata: Mapping[str, Any] | None = None) -> bool:
        """Make a topic; return whether it is new. One that is there stays as it is."""
        return self.call(queues.create_queue(Topic(topic), metadata))

    def get_topic(self, topic: str) -> dict[str, Any]:
        """Return a topic's metadata, with the server's defaults for what was not set."""
        return self.get_queue(Topic(topic))

    def update_topic(
        self, topic: str, metadata: Mapping[str, Any], *, remove: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Set and remove keys of a topic's metadata, all or none; return what it is then."""
        return self.update_queue(Topic(topic), metadata, remove=remove)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; an absent one is no error."""
        self.delete_queue(Topic(topic))

    def list_topics(self, *, detailed: bool = False, name: str | None = None) -> Iterator[Queue]:
        """Yield the project's topics by name, page by page; `name` keeps those containing it."""
        limit = min(self.page_size, QUEUES_A_PAGE)
        return self._items(
            lambda marker: queues.list_queues(
                "topics", marker=marker, limit=limit, detailed=detailed, name=name
            )
        )
