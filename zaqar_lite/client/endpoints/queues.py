"""Queues: make, change, list and count them; and what the home document says of a server."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.arguments import texts
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import PAGE, queue_path, with_query
from zaqar_lite.client.endpoints.resources import JSON_TYPE, NO_QUEUE
from zaqar_lite.client.models import Queue, Stats
from zaqar_lite.client.queue_options import QueueOptions, checked
from zaqar_lite.client.records import reader
from zaqar_lite.client.wire import Call, Page, Request, Response

Options = Mapping[str, Any] | QueueOptions
PATCH_TYPE = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
_QUEUE = reader(Queue)
_STATS = reader(Stats)


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
    return Call(request, encoding.json_object, NO_QUEUE)


def list_queues(
    kind: str = "queues",
    *,
    marker: str | None = None,
    limit: int | None = None,
    detailed: bool = False,
    name: str | None = None,
) -> Call[Page[Queue]]:
    """Read one page of queues or "topics", by name; `name` keeps those that contain it."""
    path = with_query(
        f"/v2/{kind}", marker=marker, limit=limit, detailed=detailed or None, name=name
    )

    return Call(Request("GET", path, {}), page_of(kind, _QUEUE))


def stats(queue: str) -> Call[Stats]:
    """Count a queue's messages; an absent queue has none."""

    def read(response: Response) -> Stats:
        return _STATS(encoding.json_object(response)["messages"])

    path = with_query(queue_path(queue, "stats"), details=True)
    return Call(Request("GET", path, {}), read, NO_QUEUE)


def home() -> Call[dict[str, Any]]:
    """Read the home document: which resources this server has."""
    return Call(
        Request("GET", "/v2/", {"Accept": "application/json-home, application/json"}),
        encoding.json_object,
    )


def longest_delay() -> Call[float]:
    """Read the most seconds that this server delays a message; infinite if it does not tell."""

    def read(response: Response) -> float:
        try:
            hints = encoding.json_object(response)["resources"]["rel/post_messages"]["hints"]
            return int(hints["max-message-delay"])
        except (KeyError, TypeError, ValueError):
            return math.inf

    return Call(home().request, read)


def largest_page() -> Call[int]:
    """Read how many messages this server gives in a page and in a claim; 20 if it does not tell."""

    def read(response: Response) -> int:
        try:
            resources = encoding.json_object(response)["resources"]
            given = [resources[name]["hints"] for name in ("rel/messages", "rel/post_claim")]
            return min(int(hints.get("max-large-limit", hints["max-limit"])) for hints in given)
        except (KeyError, TypeError, ValueError):
            return PAGE

    return Call(home().request, read)


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
