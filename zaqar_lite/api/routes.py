"""The one table of routes: what is served, by which action, and how it is documented.

A route stands above the method that is its action, in its noun's module of `api/v2`. The dispatcher
matches requests by the table, frames name its routes, FastAPI declares them (the OpenAPI document),
and the tests read it.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

from zaqar_lite.api.call import Action, Call, Refused, Result
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

A = TypeVar("A", bound=Callable[..., Awaitable[Result]])

INVALID_REQUEST = "Invalid API request"
INVALID_BODY = "Invalid request body"
UNABLE_TO_DELETE = "Unable to delete"
OPENAPI_PATH = "/openapi.json"
OPEN_PATHS = frozenset(("/", "/livez", "/readyz"))
"""The paths of the public routes: no header is asked for, nobody is asked who they are."""
NAMING = ("/v2/queues/", "/v2/topics/")
"""What the paths begin with that name a queue or a topic."""
SMALL_BODY = 4_096
"""Bytes: what a document that is neither messages nor metadata may have."""
MOST_KEPT, LONGEST_KEPT = 1_000, 256
"""How many paths keep their place, and how long such a path may be."""
METADATA: Callable[[Limits], int] = attrgetter("max_queue_metadata")
POST: Callable[[Limits], int] = attrgetter("max_messages_post_size")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header of a route, for its documentation."""

    name: str
    schema: str
    description: str
    place: str = "query"


DETAILS = Parameter("details", "Flag", "Add what Zaqar's own keys leave out.")
MARKER = Parameter("marker", "Text", "Where the page before ended; opaque.")
LIMIT = Parameter("limit", "PageLimit", "How many entries to answer at most.")
LARGE = Parameter("large", "Flag", "Allow pages and claims of up to `max_large_page` messages.")
MESSAGE_LIMIT = Parameter("limit", "MessageLimit", "How many messages to answer at most.")
CLAIM_LIMIT = Parameter("limit", "TakeLimit", "How many messages to claim at most.")
QUEUE_LIMIT = Parameter("limit", "QueueLimit", "How many queues to answer at most.")
WAIT = Parameter("wait", "Wait", "Seconds to wait while there is nothing.")
KEY = Parameter(
    "Idempotency-Key", "IdempotencyKey", "A replay of the post gets the first answer.", "header"
)


async def _missing(call: Call) -> Result:
    raise NotImplementedError(call.path)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; above a method, that is its action.

    Its name is the method's, and its summary what the docstring says before the first semicolon.
    `access` is what the policy asks of who calls it. `invalid_title` is the title of the errors
    that the domain calls Invalid. `statuses` are the answers that the route itself gives; those of
    the checks come on top, so do 503 of the store and 413 of a body. `body` names the schema of the
    request's document in `api/schemas.py`, `answer` that of what is answered, a parameter's
    `schema` one there too. A route that `needs_store` is 503 until the stores are open. A `plain`
    one is for tools: it needs no Client-ID and takes any Accept. One that `streams` answers with
    events, unless it answers an error. A `hot` one posts or reads messages: whatever it asks of the
    policy, the audit trail does not take it for a managing act. `framed_by` is the method that
    answers frames instead, where they are answered otherwise. More than `largest_body`, or what
    `largest` says of the limits, is refused before it is read: with 413, or with 400 and
    `too_large_title` where upstream has that.
    """

    method: str
    template: str
    access: Access
    statuses: tuple[int, ...]
    parameters: tuple[Parameter, ...] = ()
    name: str = ""
    summary: str = ""
    body: str | None = None
    answer: str | None = None
    hot: bool = False
    public: bool = False
    plain: bool = False
    streams: bool = False
    needs_store: bool = True
    invalid_title: str = INVALID_REQUEST
    largest_body: int = SMALL_BODY
    largest: Callable[[Limits], int] | None = None
    too_large_title: str | None = None
    action: Action = _missing
    framed_by: str = ""
    framed: Action | None = None

    def __call__(self, method: A) -> A:
        """Let a method be the action of this route."""
        summary = self.summary or (method.__doc__ or "").partition("\n")[0].partition(";")[0]
        named = replace(self, name=self.name or method.__name__, summary=summary.removesuffix("."))
        vars(method)["routes"] = (named, *vars(method).get("routes", ()))
        return method

    @property
    def names_queue(self) -> bool:
        """Whether the first variable of its path is a queue or a topic."""
        return self.template.startswith(NAMING)

    def check_size(self, size: int) -> None:
        """Refuse a body of `size` bytes.

        Raises:
            Refused: it is larger than this route takes.
        """
        if size <= self.largest_body:
            return
        description = f"The body has {size} bytes; {self.largest_body} are allowed."
        if self.too_large_title is None:
            raise Refused(413, "Request body too large", description)
        raise Refused(400, self.too_large_title, description)


def route(
    place: str,
    access: str,
    statuses: tuple[int, ...],
    parameters: tuple[Parameter, ...] = (),
    *,
    consuming: tuple[str, ...] = (),
    **fields: Any,  # noqa: ANN401 - those of a route
) -> Route:
    """A route to put above its action; `place` is METHOD PATH BODY -> ANSWER, `access` RULE VERB.

    The body and the answer are schemas; a route may have neither.
    """
    asked_at, _, answer = place.partition(" -> ")
    method, template, body = [*asked_at.split(" "), ""][:3]
    rule, _, verb = access.partition(" ")
    asked = Access(rule or None, Verb(verb) if verb else None, frozenset(consuming))
    shown = {"body": body or None, "answer": answer or None, **fields}
    return Route(method, template, asked, statuses, parameters, **shown)


def topic_twin(of: object, **changes: Any) -> Route:  # noqa: ANN401 - fields of a route
    """A topic's route that is like that of a queue's action, but for `changes`."""
    queues: Route = vars(of)["routes"][0]
    changed = {"name": "", "summary": "", "framed_by": "", **changes}
    return replace(queues, **_on_topic(queues), **changed)


def on_topics(routes: Iterable[Route]) -> Iterator[Route]:
    """The same actions of a topic, under names of their own."""
    for one in routes:
        name, summary = f"topic_{one.name}", one.summary.replace("queue", "topic")
        yield replace(one, template=_on_topic(one)["template"], name=name, summary=summary)


def _on_topic(route: Route) -> dict[str, Any]:
    rule = (route.access.rule or "").replace("queues:", "topics:")
    template = route.template.replace("/queues", "/topics").replace("{queue_name}", "{topic_name}")
    return {"template": template, "access": route.access._replace(rule=rule)}


def routes_of(actions: object, limits: Limits) -> tuple[Route, ...]:
    """The routes of an object's methods, in their order."""
    return tuple(
        replace(
            route,
            action=getattr(actions, name),
            framed=getattr(actions, route.framed_by) if route.framed_by else None,
            statuses=(*route.statuses, *_common(route)),
            largest_body=route.largest(limits) if route.largest else route.largest_body,
        )
        for name, method in vars(type(actions)).items()
        for route in getattr(method, "routes", ())
    )


def _common(route: Route) -> tuple[int, ...]:
    """The statuses that a route has because of what it is."""
    takes = route.body is not None and route.too_large_title is None
    return (*((413,) if takes else ()), *((503,) if route.needs_store else ()))


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
        self.known: dict[str, tuple[Node, tuple[str, ...]]] = {}
        """Places that were found, by path."""
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
        known = self.known.get(path)
        if known is not None:
            return known
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
        if not node.routes:
            return None
        if len(values) == 1 and len(path) <= LONGEST_KEPT:  # of a queue: it is asked for again
            if len(self.known) >= MOST_KEPT:
                self.known.clear()
            self.known[path] = node, values
        return node, values
