"""Paths and queries of Zaqar's v2 API."""

from collections.abc import Iterable
from typing import Self
from urllib.parse import quote, urlencode

from zaqar_lite.client.arguments import text

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
