"""Calls that send and receive a JSON object, which most of the API takes and gives."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from zaqar_lite.client import encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import Parameter, segment, with_query
from zaqar_lite.client.errors import QueueNotFound, StatusError
from zaqar_lite.client.wire import Call, Page, Request, Response

T = TypeVar("T")
JSON_TYPE = {"Content-Type": "application/json"}
NO_QUEUE = {404: QueueNotFound}
_NAMES = {
    "flavors": "the name of a flavor",
    "keys": "the id of a key",
    "pools": "the name of a pool",
    "quotas": "the id of a project",
    "schedules": "the name of a schedule",
}


def nothing(_: Response) -> None:
    """Read nothing of an answer: the call has no result."""


def path_of(kind: str, name: str, *rest: str) -> str:
    """Return the path of one pool, key or the like, or of what is below it.

    Raises:
        TypeError: the name is not a string.
        ValueError: the name is empty, and the path would be that of the list.
    """
    return "/".join(["/v2", kind, segment(name, _NAMES[kind]), *rest])


def ask(
    method: str,
    path: str,
    read: Callable[[dict[str, Any]], T],
    document: object = None,
    *,
    resend: bool = True,
    meanings: Mapping[int, type[StatusError]] | None = None,
) -> Call[T]:
    """Return a call that sends a document, and whose result `read` makes of the answer's document.

    Without `resend` the request is not sent again when its answer was lost: the server may have
    done what was asked, and must not do it twice. `meanings` are the errors for statuses that mean
    something special here.
    """
    request = _request(method, path, document)
    return Call(request, lambda answer: read(encoding.json_object(answer)), meanings, resend=resend)


def tell(method: str, path: str, document: object = None) -> Call[None]:
    """Return a call that has no result."""
    return Call(_request(method, path, document), nothing)


def list_page(
    path: str,
    key: str,
    read: Callable[[dict[str, Any]], T],
    meanings: Mapping[int, type[StatusError]] | None = None,
    **query: Parameter,
) -> Call[Page[T]]:
    """Return a call for a page of a list whose entries stand under `key` of the answer."""
    return Call(Request("GET", with_query(path, **query), {}), page_of(key, read), meanings)


def _request(method: str, path: str, document: object) -> Request:
    if document is None:
        return Request(method, path, {})
    return Request(method, path, JSON_TYPE, dumps(document))
