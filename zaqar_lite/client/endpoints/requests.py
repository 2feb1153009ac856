"""Requests of Zaqar's v2 API as values: their paths, and what of JSON they send and receive.

A `Call` is a request and the function that reads its answer. Messages and claims have a function
for each call, because several parts of the SDK make it; most methods use `ask` and `tell`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from zaqar_lite.client.arguments import text
from zaqar_lite.client.calls import Call, Operation, Request, Response
from zaqar_lite.client.errors import QueueNotFound, StatusError
from zaqar_lite.client.serialization import document, dumps, json_object, objects
from zaqar_lite.client.steps import Page

T = TypeVar("T")
JSON_TYPE = {"Content-Type": "application/json"}
NO_QUEUE = {404: QueueNotFound}
Parameter = str | int | bool | None
PAGE = 20
"""How many messages every server gives and takes at once; Zaqar Lite gives 1,000 who says so."""


class Topic(str):
    """The name of a topic, where a method asks for a queue's: it is posted to, subscribed to."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Take the name, which must be a string."""
        return super().__new__(cls, text("topic", name))


def queue_path(queue: str, *rest: str) -> str:
    """Return the path of a queue, or of a `Topic`, or of what is below it.

    Raises:
        TypeError: a part is not a string.
        ValueError: a part is empty, and the path would be that of something else.
    """
    above = "/v2/topics" if isinstance(queue, Topic) else "/v2/queues"
    parts = [segment(one, "an id") for one in rest]
    return "/".join([above, segment(queue, "the name of a queue"), *parts])


def segment(name: str, what: str) -> str:
    """Return a name as a part of a path.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty, and the path would be that of something else.
    """
    if not text(what, name):
        message = f"{what} is empty"
        raise ValueError(message)
    # HTTP libraries and proxies take these two for "here" and "one up": the message ".." would
    # be its queue.
    return quote(name, safe="") if name not in {".", ".."} else "%2E" * len(name)


def with_query(path: str, **parameters: Parameter) -> str:
    """Add the parameters that are not None; booleans become true and false."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in parameters.items()
        if value is not None
    }
    # The names in the signature are Python's; the commas of id lists stay readable in a log.
    return f"{path}?{urlencode(given, safe=',')}" if given else path


def id_list(ids: Iterable[str]) -> str:
    """Join ids for a query.

    Raises:
        ValueError: one is empty or contains a comma, and would name other messages than meant.
    """
    joined = list(ids)
    for one in joined:
        if not one or "," in one:
            message = f"{one!r} is not an id"
            raise ValueError(message)
    return ",".join(joined)


def large(count: int | None) -> bool | None:
    """Return the parameter `large` of a request for so many messages; None where it needs none."""
    return True if count is not None and count > PAGE else None


def next_marker(page: Mapping[str, object]) -> str | None:
    """Return the marker in a page's `next` link, None on the last page."""
    links = page.get("links")
    for link in links if isinstance(links, list) else []:
        if isinstance(link, dict) and link.get("rel") == "next":
            values = parse_qs(urlsplit(str(link.get("href", ""))).query).get("marker")
            if values:
                return values[-1]
    return None


def page_of(key: str, read_entry: Callable[[dict[str, Any]], T]) -> Callable[[Response], Page[T]]:
    """Return a reader of pages whose entries are under `key`; an empty page ends the list."""

    def read(response: Response) -> Page[T]:
        items = [read_entry(entry) for entry in objects(response, key)]
        # Zaqar's own pages of queues always have a link, also behind the last.
        return Page(items, next_marker(document(response)) if items else None)

    return read


def path_of(kind: str, name: str, *rest: str) -> str:
    """Return the path of one pool, key or the like, or of what is below it.

    Raises:
        TypeError: the name is not a string.
        ValueError: the name is empty, and the path would be that of the list.
    """
    return "/".join(["/v2", kind, segment(name, f"the name or id in {kind}"), *rest])


def ask(
    method: str,
    path: str,
    read: Callable[[dict[str, Any]], T],
    sent: object = None,
    *,
    resend: bool = True,
    meanings: Mapping[int, type[StatusError]] | None = None,
) -> Call[T]:
    """Return a call that sends a document, and whose result `read` makes of the answer's document.

    Without `resend` the request is not sent again when its answer was lost: the server may have
    done what was asked, and must not do it twice. `meanings` are the errors for statuses that mean
    something special here.
    """
    request = _request(method, path, sent)
    return Call(request, lambda answer: read(json_object(answer)), meanings, resend=resend)


def tell(
    method: str,
    path: str,
    sent: object = None,
    meanings: Mapping[int, type[StatusError]] | None = None,
    operation: Operation | None = None,
) -> Call[None]:
    """Return a call that has no result."""
    return Call(_request(method, path, sent), lambda _: None, meanings, operation=operation)


def _request(method: str, path: str, sent: object) -> Request:
    if sent is None:
        return Request(method, path, {})
    return Request(method, path, JSON_TYPE, dumps(sent))
