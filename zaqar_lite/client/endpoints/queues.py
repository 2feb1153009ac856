"""Queues: make, read, change, list, count, empty, split, share; ping, health and the home page."""

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.arguments import takes, texts, zoned
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import queue_path, with_query
from zaqar_lite.client.errors import QueueNotFound
from zaqar_lite.client.models import (
    Done,
    Queue,
    Range,
    SignedURL,
    Stats,
)
from zaqar_lite.client.queue_options import QueueOptions, checked
from zaqar_lite.client.records import reader
from zaqar_lite.client.wire import Call, Page, Request, Response

Options = Mapping[str, Any] | QueueOptions
JSON_TYPE = {"Content-Type": "application/json"}
PATCH_TYPE = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
NO_QUEUE = {404: QueueNotFound}
_QUEUE = reader(Queue)
_STATS = reader(Stats)
_RANGE = reader(Range)
_DONE = reader(Done)
_SIGNED = reader(SignedURL)


def nothing(_: Response) -> None:
    """Read an answer that says nothing."""


def create_queue(queue: str, metadata: Options | None = None) -> Call[bool]:
    """Make a queue; the result says whether it is new (an existing one is left as it is)."""
    body = dumps(checked(metadata)) if metadata is not None else None
    headers = JSON_TYPE if body is not None else {}
    return Call(Request("PUT", queue_path(queue), headers, body), lambda r: r.status == 201)


def get_queue(queue: str) -> Call[dict[str, Any]]:
    """Read a queue's metadata, with the server's defaults for what was not set."""
    return Call(Request("GET", queue_path(queue), {}), encoding.json_object, NO_QUEUE)


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


def delete_queue(queue: str) -> Call[None]:
    """Delete a queue with its messages; an absent one is no error."""
    return Call(Request("DELETE", queue_path(queue), {}), nothing)


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


def purge(queue: str, resource_types: Iterable[str] | None = None) -> Call[None]:
    """Delete a queue's messages and subscriptions, or only the types named; metadata stays."""
    if resource_types is None:
        return Call(Request("POST", queue_path(queue, "purge"), {}), nothing)
    body = dumps({"resource_types": texts("resource_types", resource_types)})
    return Call(Request("POST", queue_path(queue, "purge"), JSON_TYPE, body), nothing)


def ranges(queue: str, count: int) -> Call[list[Range]]:
    """Split what a queue holds now into at most `count` parts of about equal size."""

    def read(response: Response) -> list[Range]:
        return [_RANGE(entry) for entry in encoding.objects(response, "ranges")]

    takes("count", count, Integral)
    path = with_query(queue_path(queue, "ranges"), count=count)
    return Call(Request("GET", path, {}), read, NO_QUEUE)


def history(
    queue: str, *, state: str = "done", marker: str | None = None, limit: int | None = None
) -> Call[Page[Done]]:
    """Read one page of messages that were deleted (`done`) or that `failed` for good."""
    path = with_query(queue_path(queue, "history"), state=state, marker=marker, limit=limit)

    return Call(Request("GET", path, {}), page_of("messages", _DONE), NO_QUEUE)


def share(
    queue: str,
    *,
    paths: Iterable[str] = ("messages",),
    methods: Iterable[str] = ("GET",),
    expires: dt.datetime | None = None,
) -> Call[SignedURL]:
    """Ask for a pre-signed permission; it lasts a day when `expires` is not given."""
    wanted: dict[str, object] = {
        "paths": texts("paths", paths),
        "methods": texts("methods", methods),
    }
    zoned("expires", expires)
    if expires is not None:
        at = expires.astimezone(dt.UTC)
        wanted["expires"] = at.strftime("%Y-%m-%dT%H:%M:%S")

    def read(response: Response) -> SignedURL:
        return _SIGNED(encoding.json_object(response))

    body = dumps(wanted)
    return Call(Request("POST", queue_path(queue, "share"), JSON_TYPE, body), read)


def unshare(queue: str) -> Call[None]:
    """Revoke the pre-signed permissions of a queue."""
    return Call(Request("DELETE", queue_path(queue, "share"), {}), nothing)


def ping() -> Call[None]:
    """Ask whether the server and its store are up."""
    return Call(Request("GET", "/v2/ping", {}), nothing)


def health() -> Call[dict[str, Any]]:
    """Ask an operator's server (admin mode) to try every operation and tell how they went."""
    return Call(Request("GET", "/v2/health", {}), encoding.json_object)


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
            return min(int(hints["max-limit"]) for hints in given)
        except (KeyError, TypeError, ValueError):
            return 20

    return Call(home().request, read)


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
