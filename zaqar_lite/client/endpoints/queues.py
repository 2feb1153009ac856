"""Queues, topics, and the service itself."""

import datetime as dt
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from zaqar_lite.client import queue_options
from zaqar_lite.client.arguments import takes, text, texts, zoned
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call, Request, Response
from zaqar_lite.client.endpoints.requests import (
    JSON_TYPE,
    NO_QUEUE,
    Topic,
    ask,
    queue_path,
    tell,
    with_query,
)
from zaqar_lite.client.models import Done, Queue, Range, SignedURL, Stats
from zaqar_lite.client.queue_options import Ensured, QueueOptions, checked
from zaqar_lite.client.serialization import dumps, json_object, reader
from zaqar_lite.client.steps import Pages, Steps, listing, method

Options = Mapping[str, Any] | QueueOptions
PATCH_TYPE = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
QUEUES_A_PAGE = 20
"""Most queues of a page; a client's `page_size` is that of messages."""
_QUEUE = reader(Queue)
_STATS = reader(Stats)
_RANGE = reader(Range)
_DONE = reader(Done)
_SIGNED = reader(SignedURL)


class Queues(BaseClient):
    """Make, read, change, list, count, empty, split and share queues; ask the service."""

    @method
    def create_queue(self, queue: str, metadata: Options | None = None) -> Steps[bool]:
        """Make a queue with these options or metadata; return whether it is new.

        Raises:
            QueueExists: it is there with other options, which stay as they are.
            ValueError: a key begins with `_` and is not an option.
        """
        created = yield from self._exchange(create_queue(queue, metadata))
        if not created and metadata is not None:
            found = yield from self._exchange(get_queue(queue))
            different = queue_options.differing(queue_options.checked(metadata), found)
            if different:
                raise queue_options.exists(queue, different, found)
        return created

    @method
    def ensure_queue(self, queue: str, metadata: Options | None = None) -> Steps[Ensured]:
        """Make a queue with these options or metadata, or change them; return which it was.

        Without any, only that there is one is ensured. Keys that are not given stay as they are.

        Raises:
            ValueError: a key begins with `_` and is not an option.
        """
        if (yield from self._exchange(create_queue(queue, metadata))):
            return Ensured.CREATED
        if metadata is None:
            return Ensured.UNCHANGED
        wanted = queue_options.checked(metadata)
        found = yield from self._exchange(get_queue(queue))
        different = queue_options.differing(wanted, found)
        if not different:
            return Ensured.UNCHANGED
        yield from self._exchange(update_queue(queue, different))
        return Ensured.CHANGED

    @method
    def get_queue(self, queue: str) -> Steps[dict[str, Any]]:
        """Return a queue's metadata, with the server's defaults for what was not set."""
        return self._exchange(get_queue(queue))

    @method
    def queue_exists(self, queue: str) -> Steps[bool]:
        """Return whether the queue, or `Topic`, was made; `get_queue` shows the defaults if not."""
        kind = "topics" if isinstance(queue, Topic) else "queues"
        pages = list_pages(self, kind, detailed=False, name=text("queue", queue))
        marker: str | None = None
        while True:
            page = yield from pages(marker)
            if any(one.name == queue for one in page.items):
                return True
            if (marker := page.marker) is None:
                return False

    @method
    def update_queue(
        self, queue: str, metadata: Options, *, remove: Iterable[str] = ()
    ) -> Steps[dict[str, Any]]:
        """Set and remove keys of a queue's metadata, all or none; return what it is then."""
        return self._exchange(update_queue(queue, metadata, remove))

    @method
    def delete_queue(self, queue: str) -> Steps[None]:
        """Delete a queue with its messages; an absent one is no error."""
        return self._exchange(tell("DELETE", queue_path(queue)))

    @listing
    def list_queues(self, *, detailed: bool = False, name: str | None = None) -> Pages[Queue]:
        """Yield the project's queues by name, page by page; `name` keeps those containing it."""
        return list_pages(self, "queues", detailed=detailed, name=name)

    @method
    def stats(self, queue: str) -> Steps[Stats]:
        """Count a queue's messages."""
        return self._exchange(stats(queue))

    @method
    def purge(self, queue: str, resource_types: Iterable[str] | None = None) -> Steps[None]:
        """Delete all "messages" and "subscriptions" of a queue, or only the types named."""
        wanted = None
        if resource_types is not None:
            wanted = {"resource_types": texts("resource_types", resource_types)}
        return self._exchange(tell("POST", queue_path(queue, "purge"), wanted))

    @method
    def ranges(self, queue: str, count: int) -> Steps[list[Range]]:
        """Split what a queue holds now into at most `count` parts, to read them in parallel."""
        takes("count", count, Integral)
        path = with_query(queue_path(queue, "ranges"), count=count)

        def read(found: Mapping[str, Any]) -> list[Range]:
            return [_RANGE(one) for one in found["ranges"]]

        return self._exchange(ask("GET", path, read, meanings=NO_QUEUE))

    @listing
    def history(self, queue: str, *, state: str = "done") -> Pages[Done]:
        """Yield what was deleted (`done`), or what `failed`, if the queue keeps a history.

        Failed is what had all its deliveries where there is no dead-letter queue to go to.
        """
        limit, path = min(self.page_size, QUEUES_A_PAGE), queue_path(queue, "history")
        return self._pages(path, "messages", _DONE, NO_QUEUE, state=state, limit=limit)

    @method
    def share(
        self,
        queue: str,
        *,
        paths: Iterable[str] = ("messages",),
        methods: Iterable[str] = ("GET",),
        expires: dt.datetime | None = None,
    ) -> Steps[SignedURL]:
        """Make a pre-signed permission for others, a day long unless `expires` says otherwise."""
        wanted: dict[str, object] = {
            "paths": texts("paths", paths),
            "methods": texts("methods", methods),
        }
        zoned("expires", expires)
        if expires is not None:
            wanted["expires"] = expires.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return self._exchange(ask("POST", queue_path(queue, "share"), _SIGNED, wanted))

    @method
    def unshare(self, queue: str) -> Steps[None]:
        """Revoke all pre-signed permissions of a queue that were made until now."""
        return self._exchange(tell("DELETE", queue_path(queue, "share")))

    @method
    def ping(self) -> Steps[None]:
        """Return normally if the server and its store are up.

        Raises:
            Unavailable: the server is up, its store is not.
            Unreachable: no answer.
        """
        return self._exchange(tell("GET", "/v2/ping"))

    @method
    def health(self) -> Steps[dict[str, Any]]:
        """Return how every operation went when the server tried it now (admin mode only)."""
        return self._exchange(ask("GET", "/v2/health", dict))

    @method
    def home(self) -> Steps[dict[str, Any]]:
        """Return the home document: which resources this server has."""
        accepted = {"Accept": "application/json-home, application/json"}
        return self._exchange(Call(Request("GET", "/v2/", accepted), json_object))


class Topics(BaseClient):
    """Make, read, change, list and delete topics.

    For the rest the methods of queues take a `Topic`: `post(Topic("orders"), body)`,
    `subscribe(Topic("orders"), "queue:billing")`, `list_subscriptions`, `purge`, `share`.
    """

    @method
    def create_topic(self, topic: str, metadata: Mapping[str, Any] | None = None) -> Steps[bool]:
        """Make a topic; return whether it is new. One that is there stays as it is."""
        return self._exchange(create_queue(Topic(topic), metadata))

    @method
    def get_topic(self, topic: str) -> Steps[dict[str, Any]]:
        """Return a topic's metadata, with the server's defaults for what was not set."""
        return self._exchange(get_queue(Topic(topic)))

    @method
    def update_topic(
        self, topic: str, metadata: Mapping[str, Any], *, remove: Iterable[str] = ()
    ) -> Steps[dict[str, Any]]:
        """Set and remove keys of a topic's metadata, all or none; return what it is then."""
        return self._exchange(update_queue(Topic(topic), metadata, remove))

    @method
    def delete_topic(self, topic: str) -> Steps[None]:
        """Delete a topic; an absent one is no error."""
        return self._exchange(tell("DELETE", queue_path(Topic(topic))))

    @listing
    def list_topics(self, *, detailed: bool = False, name: str | None = None) -> Pages[Queue]:
        """Yield the project's topics by name, page by page; `name` keeps those containing it."""
        return list_pages(self, "topics", detailed=detailed, name=name)


def create_queue(queue: str, metadata: Options | None = None) -> Call[bool]:
    """Make a queue; the result says whether it is new (an existing one is left as it is)."""
    body = dumps(checked(metadata)) if metadata is not None else None
    headers = JSON_TYPE if body is not None else {}
    return Call(Request("PUT", queue_path(queue), headers, body), lambda r: r.status == 201)


def update_queue(queue: str, metadata: Options, remove: Iterable[str] = ()) -> Call[dict[str, Any]]:
    """Set and remove keys of a queue's metadata, all or none; the result is what it is then."""
    operations: list[dict[str, object]] = [
        {"op": "add", "path": f"/metadata/{_pointer(key)}", "value": value}
        for key, value in checked(metadata).items()
    ]
    operations += [
        {"op": "remove", "path": f"/metadata/{_pointer(key)}"}
        for key in texts("remove", remove, "keys")
    ]
    request = Request("PATCH", queue_path(queue), PATCH_TYPE, dumps(operations))
    return Call(request, json_object, NO_QUEUE)


def list_pages(client: BaseClient, kind: str, *, detailed: bool, name: str | None) -> Pages[Queue]:
    """Return the pages of the project's queues, or of its "topics"."""
    limit = min(client.page_size, QUEUES_A_PAGE)
    shown = detailed or None
    return client._pages(f"/v2/{kind}", kind, _QUEUE, limit=limit, detailed=shown, name=name)


def get_queue(queue: str) -> Call[dict[str, Any]]:
    """Read a queue's metadata."""
    return ask("GET", queue_path(queue), dict, meanings=NO_QUEUE)


def stats(queue: str) -> Call[Stats]:
    """Count a queue's messages; an absent queue has none."""

    def read(response: Response) -> Stats:
        return _STATS(json_object(response)["messages"])

    path = with_query(queue_path(queue, "stats"), details=True)
    return Call(Request("GET", path, {}), read, NO_QUEUE)


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
