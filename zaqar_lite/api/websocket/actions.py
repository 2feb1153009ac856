"""WebSocket's reader: which fields the frames of an action have, and how a frame becomes a request.

An action is declared in the table here. Its rights, sizes, rates and rules are those of its route.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Meta

from zaqar_lite.api.render import yes_no
from zaqar_lite.api.request import VARIABLE, Action, Check, Request, Route, request_of
from zaqar_lite.api.routes import RouteTree
from zaqar_lite.api.websocket import frames
from zaqar_lite.api.websocket.frames import Frame, Show

_FIELD = re.compile(r"(?P<name>\w+)(?P<required>!?)(?::(?P<kind>\w+))?(?:=(?P<target>[\w*]+))?")
_ALL = "*"


_KINDS: Mapping[str, Any] = {
    "text": str,
    "whole": int,
    "flag": bool,
    "texts": Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)],
    "object": dict,
    "list": list,
}
"""What a field of a frame's body may be."""


class Field(NamedTuple):
    """A field of a frame's body; `target` is its name in the request."""

    name: str
    kind: str
    required: bool
    target: str


@dataclass(frozen=True, slots=True)
class SocketAction:
    """An action of the WebSocket API, declared by a route's name and the fields of a frame's body.

    fields    each is NAME, NAME! if it is required, NAME:KIND if it is not a text, or NAME=TARGET
              if the request has another name for it; the target `*` is the whole document. The
              variables of the route's path are required fields and not written here. Any other
              field is a parameter of the route if that has one of its name, else of the document
    show      makes the body of the answer
    statuses  answers of the route that are errors over HTTP only, and the action's status for them
    missing   the error text of a 404
    bare      whether no document is sent if no field of it is given, in place of an empty one
    method    answers frames instead of the route's action, from whose object it is
    listens   whether it subscribes the connection itself if the frame names no subscriber
    """

    name: str
    route: str
    fields: str = ""
    show: Show = frames.document
    statuses: Mapping[int, int] | None = None
    missing: str = ""
    bare: bool = False
    method: str = ""
    listens: bool = False


_PAGE = "marker limit:whole"
_DETAILED_PAGE = _PAGE + " detailed:flag"
_POOL = "uri weight:whole flavor options:object"
_FLAVOR = "pool_list:texts capabilities:object"
_LEASE = "ttl:whole grace:whole"
_NO_CLAIM = "Claim {claim_id} does not exist."
_ADMIN = (
    SocketAction("pool_list", "list_pools", _DETAILED_PAGE, frames.without_links),
    SocketAction("pool_create", "create_pool", _POOL, frames.text("Pool {pool_name} created.")),
    SocketAction("pool_get", "show_pool", "detailed:flag"),
    SocketAction("pool_update", "update_pool", _POOL),
    SocketAction("pool_delete", "delete_pool", show=frames.text("Pool {pool_name} removed.")),
    SocketAction("flavor_list", "list_flavors", _DETAILED_PAGE, frames.without_links),
    SocketAction(
        "flavor_create", "create_flavor", _FLAVOR, frames.text("Flavor {flavor_name} created.")
    ),
    SocketAction("flavor_get", "show_flavor", "detailed:flag"),
    SocketAction("flavor_update", "update_flavor", _FLAVOR),
    SocketAction(
        "flavor_delete", "delete_flavor", show=frames.text("Flavor {flavor_name} removed.")
    ),
)
"""Upstream has schemas of these, and answers 500 to them."""

ACTIONS = (
    SocketAction("queue_list", "list_queues", _DETAILED_PAGE, frames.names, method="list_stored"),
    SocketAction(
        "queue_create",
        "create_queue",
        "metadata:object=*",
        frames.text("Queue {queue_name} created."),
    ),
    SocketAction("queue_get", "show_queue", method="get_stored"),
    SocketAction("queue_delete", "delete_queue", show=frames.text("Queue {queue_name} removed.")),
    SocketAction(
        "queue_get_stats",
        "queue_stats",
        show=frames.stats,
        statuses={404: 404},
        method="stats_stored",
    ),
    SocketAction("queue_purge", "purge_queue", "resource_types:texts", bare=True),
    SocketAction(
        "message_list",
        "list_messages",
        _PAGE + " large:flag echo:flag include_claimed:flag include_delayed:flag",
        frames.messages,
    ),
    SocketAction("message_post", "post_messages", "messages!:list", frames.posted),
    SocketAction("message_get", "get_message", show=frames.message),
    SocketAction(
        "message_get_many",
        "list_messages",
        "message_ids!:texts=ids large:flag",
        frames.messages,
        statuses={404: 200},
    ),
    SocketAction("message_delete", "delete_message", "claim_id"),
    SocketAction(
        "message_delete_many",
        "delete_messages",
        "message_ids:texts=ids claim_ids:texts pop:whole large:flag",
        frames.messages,
    ),
    SocketAction(
        "claim_create", "claim_messages", "limit:whole large:flag " + _LEASE, frames.claimed
    ),
    SocketAction("claim_get", "show_claim", show=frames.claim, missing=_NO_CLAIM),
    SocketAction(
        "claim_update",
        "renew_claim",
        _LEASE,
        frames.text("Claim {claim_id} updated."),
        missing=_NO_CLAIM,
    ),
    SocketAction("claim_delete", "release_claim", show=frames.text("Claim {claim_id} deleted.")),
    SocketAction(
        "subscription_create",
        "create_subscription",
        "subscriber ttl:whole options:object",
        frames.subscribed,
        method="create_new",
        listens=True,
    ),
    SocketAction("subscription_list", "list_subscriptions", _PAGE, frames.without_links),
    SocketAction("subscription_get", "show_subscription"),
    SocketAction(
        "subscription_delete",
        "delete_subscription",
        show=frames.text("Subscription {subscription_id} removed."),
    ),
    SocketAction("get_home_doc", "home"),
    SocketAction("ping_node", "ping"),
    SocketAction("check_node_health", "health"),
    *_ADMIN,
)


class ServedAction:
    """An action that this server has: its route, what a frame must pass, and a frame's fields."""

    def __init__(self, declared: SocketAction, route: Route, checks: tuple[Check, ...]) -> None:
        self.declared = declared
        self.route = route
        self._checks = checks
        self._action: Action = route.action
        if declared.method:
            self._action = getattr(route.action.__self__, declared.method)  # type: ignore[attr-defined]
        self.path = tuple(VARIABLE.findall(route.template))
        self.parameters = frozenset(parameter.name for parameter in route.parameters)
        self.fields = (
            *(Field(name, "text", required=True, target=name) for name in self.path),
            *map(_field, declared.fields.split()),
        )
        needed = [(one.name, _KINDS[one.kind]) for one in self.fields if one.required]
        others = [one for one in self.fields if not one.required]
        self._form = msgspec.defstruct(
            declared.name, [*needed, *((one.name, _KINDS[one.kind] | None, None) for one in others)]
        )

    def is_malformed(self, body: Mapping[str, Any]) -> bool:
        """Tell whether a frame's body lacks a field or has one of another kind."""
        try:
            msgspec.convert(body, self._form)
        except msgspec.ValidationError:
            return True
        return False

    def request(self, frame: Frame, headers: dict[bytes, bytes]) -> Request:
        """Make a request of a frame whose fields fit.

        Raises:
            Unreadable: a binary frame holds what JSON has no form for.
        """
        given: Mapping[str, Any] = frame.body or {}
        path = VARIABLE.sub(lambda found: quote(given[found[1]], safe=""), self.route.template)
        request = request_of(self.route.method, b"", b"", tuple(headers.items()), path=path)
        request.given = {}
        request.checks, request.action = self._checks, self._action
        request.path_values = tuple(given[name] for name in self.path)
        request.document = b"{}" if self.route.body and not self.declared.bare else b""
        parts = []
        for field in self.fields[len(self.path) :]:
            value = given.get(field.name)
            if value is None:
                continue
            if field.target in self.parameters:
                if value != "":  # as over HTTP, an empty one is none
                    request.parameters[field.target] = _texts(value)
            elif field.target == _ALL:
                request.document = frame.text_of(field.name)
            else:
                parts.append(b'"%b":%b' % (field.target.encode(), frame.text_of(field.name)))
        if parts:
            request.document = b"{%b}" % b",".join(parts)
        request.size = len(request.document)
        return request


def served_actions(tree: RouteTree) -> dict[str, ServedAction | None]:
    """Every action by name; None where this server has not its route."""
    routes = {route.name: route for route in tree.routes}
    served: dict[str, ServedAction | None] = {}
    for declared in ACTIONS:
        route = routes.get(declared.route)
        served[declared.name] = None
        if route is not None:
            checks = tree.nodes[route.template].checks[route.method]
            served[declared.name] = ServedAction(declared, route, checks)
    return served


def _field(text: str) -> Field:
    found = _FIELD.fullmatch(text)
    assert found is not None, text  # noqa: S101 - the table is ours
    name = found["name"]
    required = bool(found["required"])
    return Field(name, found["kind"] or "text", required, found["target"] or name)


def _texts(value: Any) -> list[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return value
    return [yes_no(value) if isinstance(value, bool) else str(value)]
