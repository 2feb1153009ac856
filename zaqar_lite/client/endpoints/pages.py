"""Pages of a listing: what every one of them is read by."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from zaqar_lite.client import encoding
from zaqar_lite.client.wire import Page, Response

T = TypeVar("T")


def next_marker(document: Mapping[str, object]) -> str | None:
    """Return the marker in a page's `next` link, None on the last page."""
    links = document.get("links")
    for link in links if isinstance(links, list) else []:
        if isinstance(link, dict) and link.get("rel") == "next":
            values = parse_qs(urlsplit(str(link.get("href", ""))).query).get("marker")
            if values:
                return values[-1]
    return None


def page_of(key: str, read_entry: Callable[[dict[str, Any]], T]) -> Callable[[Response], Page[T]]:
    """Return a reader of pages whose entries are under `key`; an empty page ends the list."""

    def read(response: Response) -> Page[T]:
        items = [read_entry(entry) for entry in encoding.objects(response, key)]
        # Zaqar's own pages of queues always have a link, also behind the last.
        return Page(items, next_marker(encoding.document(response)) if items else None)

    return read
