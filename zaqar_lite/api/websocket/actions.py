"""WebSocket's reader: what the frames of each action hold, and the calls that are made of them.

An action is a line here and nothing else: its rights, sizes, rates and rules are its route's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from zaqar_lite.api.call import Action, Call
from zaqar_lite.api.render import yes_no
from zaqar_lite.api.routes import Node, Route, RouteTree
from zaqar_lite.api.websocket import answers
from zaqar_lite.api.websocket.answers import Show
from zaqar_lite.api.websocket.encoding import Frame

_VARIABLE = re.compile(r"{(\w+)}")
_FIELD = re.compile(r"(?P<name>\w+)(?P<required>!?)(?::(?P<kind>\w+))?(?:=(?P<target>[\w*]+))?")
_ALL = "*"


def _are_names(value: Any) -> bool:  # noqa: ANN401 - any JSON
    good = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
    return good and bool(value)


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "whole": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "flag": lambda value: isinstance(value, bool),
    "texts": _are_names,
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
}
"""What a field of a frame's body may be."""


class Field(NamedTuple):
    """A field of a frame's body; `target` is its name in the call."""

    name: str
    kind: str
    required: bool
    target: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An action as frames ask for it: a route by its name, and what their bodies hold.

    `fields` are written NAME, NAME! where it is required, NAME:KIND where it is no text and
    NAME=TARGET where the call has another name for it; `*` is the document as a whole. The
    variables of the route's path are fields without being written; another field is a parameter of
    the route, or else one of its document.
    `statuses` are errors of the route that are no errors of the action, with the status that it has
    then. `missing` is the error of a 404. `empty` is the document where none of its fields is
    given. One that is `signable` may come with a signed URL. One that `listens` makes a
    subscription, of the connection itself where it names no subscriber.
    """

    name: str
    route: str
    fields: str = ""
    show: Show = answers.document
    statuses: Mapping[int, int] | None = None
    missing: str = ""
    empty: bytes = b""
    signable: bool = False
    listens: bool = False


_PAGE = "marker limit:whole"
_DETAILED_PAGE = _PAGE + " detailed:flag"
_POOL = "uri weight:whole flavor options:object"
_FLAVOR = "pool_list:texts capabilities:object"
_LEASE = "ttl:whole grace:whole"
_NO_CLAIM = "Claim {claim_id} does not exist."
_ADMIN = (
    Asked("pool_list", "list_pools", _DETAILED_PAGE, answers.without_links),
    Asked(
        "pool_create", "create_pool", _POOL, answers.text("Pool {pool_name} created."), empty=b"{}"
    ),
    Asked("pool_get", "show_pool", "detailed:flag"),
    Asked("pool_update", "update_pool", _POOL, empty=b"{}"),
    Asked("pool_delete", "delete_pool", show=answers.text("Pool {pool_name} removed.")),
    Asked("flavor_list", "list_flavors", _DETAILED_PAGE, answers.without_links),
    Asked(
        "flavor_create",
        "create_flavor",
        _FLAVOR,
        answers.text("Flavor {flavor_name} created."),
        empty=b"{}",
    ),
    Asked("flavor_get", "show_flavor", "detailed:flag"),
    Asked("flavor_update", "update_flavor", _FLAVOR, empty=b"{}"),
    Asked("flavor_delete", "delete_flavor", show=answers.text("Flavor {flavor_name} removed.")),
)
"""Upstream has schemas of these, and answers 500 to them."""

ACTIONS = (
    Asked("queue_list", "list_queues", _DETAILED_PAGE, answers.names),
    Asked(
        "queue_create",
        "create_queue",
        "metadata:object=*",
        answers.text("Queue {queue_name} created."),
    ),
    Asked("queue_get", "show_queue"),
    Asked("queue_delete", "delete_queue", show=answers.text("Queue {queue_name} removed.")),
    Asked("queue_get_stats", "queue_stats", show=answers.stats, statuses={404: 404}),
    Asked("queue_purge", "purge_queue", "resource_types:texts"),
    Asked(
        "message_list",
        "list_messages",
        _PAGE + " echo:flag include_claimed:flag include_delayed:flag",
        answers.messages,
        signable=True,
    ),
    Asked("message_post", "post_messages", "messages!:list", answers.posted, signable=True),
    Asked("message_get", "get_message", show=answers.message, signable=True),
    Asked(
        "message_get_many",
        "list_messages",
        "message_ids!:texts=ids",
        answers.messages,
        statuses={404: 200},
        signable=True,
    ),
    Asked("message_delete", "delete_message", "claim_id", signable=True),
    Asked(
        "message_delete_many",
        "delete_messages",
        "message_ids:texts=ids claim_ids:texts pop:whole",
        answers.messages,
        signable=True,
    ),
    Asked("claim_create", "claim_messages", "limit:whole " + _LEASE, answers.claimed),
    Asked("claim_get", "show_claim", show=answers.claim, missing=_NO_CLAIM),
    Asked(
        "claim_update",
        "renew_claim",
        _LEASE,
        answers.text("Claim {claim_id} updated."),
        missing=_NO_CLAIM,
        empty=b"{}",
    ),
    Asked("claim_delete", "release_claim", show=answers.text("Claim {claim_id} deleted.")),
    Asked(
        "subscription_create",
        "create_subscription",
        "subscriber ttl:whole options:object",
        answers.subscribed,
        empty=b"{}",
        listens=True,
    ),
    Asked("subscription_list", "list_subscriptions", _PAGE, answers.without_links),
    Asked("subscription_get", "show_subscription"),
    Asked(
        "subscription_delete",
        "delete_subscription",
        show=answers.text("Subscription {subscription_id} removed."),
    ),
    Asked("get_home_doc", "home"),
    Asked("ping_node", "ping"),
    Asked("check_node_health", "health"),
    *_ADMIN,
)


class Served:
    """An action that this server has: its route, the route's place, and the fields of a frame."""

    def __init__(self, asked: Asked, route: Route, node: Node) -> None:
        self.asked = asked
        self.route = route
        self.node = node
        self.action: Action = route.framed or route.action
        self.path = tuple(_VARIABLE.findall(route.template))
        self.parameters = frozenset(parameter.name for parameter in route.parameters)
        self.fields = (
            *(Field(name, "text", required=True, target=name) for name in self.path),
            *map(_field, asked.fields.split()),
        )

    def misfits(self, body: Mapping[str, Any]) -> bool:
        """Tell whether a frame's body lacks a field or has one of another kind."""
        for field in self.fields:
            value = body.get(field.name)
            if value is None:
                if field.required:
                    return True
            elif not KINDS[field.kind](value):
                return True
        return False

    def call(self, frame: Frame, headers: dict[bytes, bytes]) -> Call:
        """Make a call of a frame whose fields fit.

        Raises:
            Unreadable: a binary frame holds what JSON has no form for.
        """
        given: Mapping[str, Any] = frame.body or {}
        path = _VARIABLE.sub(lambda found: quote(given[found[1]], safe=""), self.route.template)
        call = Call(self.route.method, path, headers)
        call.path_values = tuple(given[name] for name in self.path)
        call.document = self.asked.empty
        parts = []
        for field in self.fields[len(self.path) :]:
            value = given.get(field.name)
            if value is None:
                continue
            if field.target in self.parameters:
                if value != "":  # as over HTTP, an empty one is none
                    call.parameters[field.target] = _texts(value)
            elif field.target == _ALL:
                call.document = frame.text_of(field.name)
            else:
                parts.append(b'"%b":%b' % (field.target.encode(), frame.text_of(field.name)))
        if parts:
            call.document = b"{%b}" % b",".join(parts)
        call.size = len(call.document)
        return call


def served_actions(tree: RouteTree) -> dict[str, Served | None]:
    """Every action by name; None where this server has not its route."""
    routes = {route.name: route for route in tree.routes}
    served: dict[str, Served | None] = {}
    for asked in ACTIONS:
        route = routes.get(asked.route)
        place = None if route is None else tree.find(route.template)
        served[asked.name] = None
        if route is not None and place is not None:
            served[asked.name] = Served(asked, route, place[0])
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
