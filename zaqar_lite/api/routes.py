"""The one table of routes: what is served, by which handler, and how it is documented.

The dispatcher matches requests by it, FastAPI declares its routes from it (the OpenAPI document),
the home document and the tests read it. `hot` routes are answered before the framework's
middleware; the others pass through FastAPI.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from zaqar_lite.api.http import HttpError, Request, Response
from zaqar_lite.domain.identity import Access

Handler = Callable[[Request], Awaitable[Response]]

INVALID_REQUEST = "Invalid API request"
INVALID_BODY = "Invalid request body"
UNABLE_TO_DELETE = "Unable to delete"
OPEN_PATHS = frozenset(("/", "/livez", "/readyz"))
"""The paths of the public routes: no header is asked for, nobody is asked who they are."""
NAMING = ("/v2/queues/", "/v2/topics/")
"""What the paths begin with that name a queue or a topic."""
SMALL_BODY = 4_096
"""Bytes: what a document that is neither messages nor metadata may have."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header of a route, for its documentation."""

    name: str
    schema: str
    description: str
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    `access` is what the policy asks of who calls it. `invalid_title` is the title of the errors
    that the domain calls Invalid. `statuses` are the answers that the route itself gives; those of
    the checks come on top. `body` names the schema of the request's document in `api/schemas.py`,
    a parameter's `schema` one there too. A route that `needs_store` is 503 until the stores are
    open. A `plain` one is for tools: it needs no Client-ID and takes any Accept. One that `streams`
    answers with events, unless it answers an error.
    `largest_body` is refused before it is read: with 413, or with 400 and `too_large_title` where
    upstream has that.
    """

    method: str
    template: str
    handler: Handler
    name: str
    summary: str
    statuses: tuple[int, ...]
    access: Access
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    answer: str | None = None
    hot: bool = False
    public: bool = False
    plain: bool = False
    streams: bool = False
    needs_store: bool = True
    invalid_title: str = INVALID_REQUEST
    largest_body: int = SMALL_BODY
    too_large_title: str | None = None

    @property
    def names_queue(self) -> bool:
        """Whether the first variable of its path is a queue or a topic."""
        return self.template.startswith(NAMING)

    def check_size(self, size: int) -> None:
        """Refuse a body of `size` bytes.

        Raises:
            HttpError: it is larger than this route takes.
        """
        if size <= self.largest_body:
            return
        description = f"The body has {size} bytes; {self.largest_body} are allowed."
        if self.too_large_title is None:
            raise HttpError(413, "Request body too large", description)
        raise HttpError(400, self.too_large_title, description)


@dataclass(slots=True)
class Node:
    """A place in the tree of paths: literal children, at most one variable child, methods."""

    children: dict[str, "Node"] = field(default_factory=dict)
    variable: "Node | None" = None
    routes: dict[str, Route] = field(default_factory=dict)

    def allow(self) -> bytes:
        """The value of the Allow header here."""
        return ", ".join([*sorted(self.routes), "OPTIONS"]).encode()


class RouteTree:
    """Find the routes of a path, segment by segment."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self._root = Node()
        for route in routes:
            node = self._root
            for segment in route.template.split("/")[1:]:
                if segment.startswith("{"):
                    node.variable = node.variable or Node()
                    node = node.variable
                else:
                    node = node.children.setdefault(segment, Node())
            node.routes[route.method] = route

    def find(self, path: str) -> tuple[Node, tuple[str, ...]] | None:
        """The node of a path and the values of its variable segments; None for an unknown path."""
        node = self._root
        values: tuple[str, ...] = ()
        for segment in path.split("/")[1:]:
            child = node.children.get(segment)
            if child is None:
                child = node.variable
                if child is None or not segment:
                    return None
                values = (*values, segment)
            node = child
        return (node, values) if node.routes else None
