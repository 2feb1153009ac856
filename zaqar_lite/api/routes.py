"""The one table of routes: what is served, by which action, and how it is documented.

A route stands above the method that is its action, in its noun's module of `api/v2`. `Application`
matches requests by the table, frames name its routes, FastAPI declares them (the OpenAPI document),
and the tests read it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from zaqar_lite.api.request import INVALID_REQUEST, Check, Parameter, Route
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

OPENAPI_PATH = "/openapi.json"
OPEN_PATHS = frozenset(("/", "/livez", "/readyz"))
"""The paths of the public routes: no header is asked for, nobody is asked who they are."""
METADATA: Callable[[Limits], int] = attrgetter("max_queue_metadata")
POST: Callable[[Limits], int] = attrgetter("max_messages_post_size")
_HOT = ("/messages", "/claims", "/events")
"""What is in the path of each route that posts or reads messages."""

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

_TOPIC_RELS = {
    "messages": "topic_messages",
    **dict.fromkeys(("subscriptions_get", "subscriptions_post"), "topic_subscriptions"),
    **dict.fromkeys(("subscription", "subscription_patch"), "topic_subscription"),
}
"""What the home document calls routes of a topic that are like those of a queue."""


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

    The body and the answer are schemas; a route may have neither. Its path tells whether it is hot
    or public, and `largest` whether upstream calls a larger document wrong, or too large.
    """
    asked_at, _, answer = place.partition(" -> ")
    method, template, body = [*asked_at.split(" "), ""][:3]
    rule, _, verb = access.partition(" ")
    is_public = not access and template in OPEN_PATHS
    derived: dict[str, Any] = {
        "body": body or None,
        "answer": answer or None,
        "hot": any(part in template for part in _HOT),
        "public": is_public,
        "needs_store": not is_public,
    }
    if fields.get("largest") in (METADATA, POST):
        derived["too_large_title"] = fields.get("invalid_title", INVALID_REQUEST)
    asked = Access(rule or None, Verb(verb) if verb else None, frozenset(consuming))
    return Route(method, template, asked, statuses, parameters, **{**derived, **fields})


def on_topics(routes: Iterable[Route]) -> Iterator[Route]:
    """The same actions of a topic, under names of their own; a topic's own routes stay."""
    for one in routes:
        if one.template.startswith("/v2/topics"):
            yield one
            continue
        name = one.name.replace("queue", "topic")
        if name == one.name:
            name = f"topic_{name}"
        rel = one.rel.replace("queue", "topic")
        if rel == one.rel:
            rel = _TOPIC_RELS.get(rel, name)
        template = one.template.replace("/queues", "/topics").replace("{queue_", "{topic_")
        rule = (one.access.rule or "").replace("queues:", "topics:")
        yield replace(
            one,
            template=template,
            name=name,
            summary=one.summary.replace("queue", "topic"),
            rel=rel,
            access=one.access._replace(rule=rule),
        )


def routes_of(actions: object, limits: Limits) -> tuple[Route, ...]:
    """The routes of an object's methods, in their order; those that it inherits are last."""
    return tuple(
        replace(
            route,
            action=getattr(actions, name),
            statuses=(
                *route.statuses,
                *((413,) if route.body is not None and route.too_large_title is None else ()),
                *((503,) if route.needs_store else ()),
            ),
            largest_body=route.largest(limits) if route.largest else route.largest_body,
        )
        for declared in type(actions).mro()
        for name, method in vars(declared).items()
        for route in getattr(method, "routes", ())
    )


@dataclass(slots=True)
class Node:
    """A place in the tree of paths: literal children, at most one variable child, methods.

    `checks` are what a request of each method must pass, `otherwise` what refuses any other method.
    """

    children: dict[str, "Node"] = field(default_factory=dict)
    variable: "Node | None" = None
    routes: dict[str, Route] = field(default_factory=dict)
    checks: dict[str, tuple[Check, ...]] = field(default_factory=dict)
    otherwise: tuple[Check, ...] = ()

    def allow(self) -> bytes:
        """The value of the Allow header here."""
        return ", ".join([*sorted(self.routes), "OPTIONS"]).encode()


class RouteTree:
    """Find the routes of a path, segment by segment."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self.nodes: dict[str, Node] = {}
        """The place of each route, by its template."""
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
            self.nodes[route.template] = node

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
