"""Topics."""

from collections.abc import Iterable, Mapping
from typing import Any

from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints import queues
from zaqar_lite.client.endpoints.requests import Topic, queue_path, tell
from zaqar_lite.client.models import Queue
from zaqar_lite.client.steps import Pages, Steps, listing, method


class Topics(BaseClient):
    """Make, read, change, list and delete topics.

    For the rest the methods of queues take a `Topic`: `post(Topic("orders"), body)`,
    `subscribe(Topic("orders"), "queue:billing")`, `list_subscriptions`, `purge`, `share`.
    """

    @method
    def create_topic(self, topic: str, metadata: Mapping[str, Any] | None = None) -> Steps[bool]:
        """Make a topic; return whether it is new. One that is there stays as it is."""
        return self._exchange(queues.create_queue(Topic(topic), metadata))

    @method
    def get_topic(self, topic: str) -> Steps[dict[str, Any]]:
        """Return a topic's metadata, with the server's defaults for what was not set."""
        return self._exchange(queues.get_queue(Topic(topic)))

    @method
    def update_topic(
        self, topic: str, metadata: Mapping[str, Any], *, remove: Iterable[str] = ()
    ) -> Steps[dict[str, Any]]:
        """Set and remove keys of a topic's metadata, all or none; return what it is then."""
        return self._exchange(queues.update_queue(Topic(topic), metadata, remove))

    @method
    def delete_topic(self, topic: str) -> Steps[None]:
        """Delete a topic; an absent one is no error."""
        return self._exchange(tell("DELETE", queue_path(Topic(topic))))

    @listing
    def list_topics(self, *, detailed: bool = False, name: str | None = None) -> Pages[Queue]:
        """Yield the project's topics by name, page by page; `name` keeps those containing it."""
        return queues.list_pages(self, "topics", detailed=detailed, name=name)
