"""The table of actions: what each takes, the route that it is, and how it is answered.

An action is a line here and nothing else: its rights, sizes, rates and rules are its route's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from zaqar_lite.api.websocket import answers
from zaqar_lite.api.websocket.answers import Show


class Kind(Enum):
    """What a field of a frame's body must be."""

    TEXT = auto()
    WHOLE = auto()
    FLAG = auto()
    TEXTS = auto()
    OBJECT = auto()
    LIST = auto()


class Place(Enum):
    """Where a field goes: into the path, a parameter, a key of the document, or all of it."""

    PATH = auto()
    QUERY = auto()
    FIELD = auto()
    DOCUMENT = auto()


class Field(NamedTuple):
    """A field of a frame's body; `target` is its name in the request where that is another."""

    name: str
    kind: Kind
    place: Place
    required: bool = False
    target: str = ""

    def admits(self, value: Any) -> bool:  # noqa: ANN401 - any JSON; a kind a line
        """Tell whether a value is of its kind."""
        match self.kind:
            case Kind.TEXT:
                return isinstance(value, str)
            case Kind.WHOLE:
                return isinstance(value, int) and not isinstance(value, bool)
            case Kind.FLAG:
                return isinstance(value, bool)
            case Kind.OBJECT:
                return isinstance(value, dict)
            case Kind.LIST:
                return isinstance(value, list)
            case Kind.TEXTS:
                return (
                    isinstance(value, list)
                    and bool(value)
                    and all(isinstance(one, str) and one for one in value)
                )


@dataclass(frozen=True, slots=True)
class Action:
    """One action: a route, by its name, and how a frame becomes a request of it.

    `handler` names the one of `ActionHandlers` that answers where a frame is answered otherwise
    than a request. `statuses` are errors of the route that are no errors of the action, with the
    status that it has then. `missing` is the error of a 404. `empty` is the document where none of
    its fields is given. One that is `signable` may come with a signed URL. One that `listens` makes
    a subscription, of the connection itself where it names no subscriber.
    """

    name: str
    route: str
    fields: tuple[Field, ...]
    show: Show = answers.nothing
    handler: str = ""
    statuses: Mapping[int, int] | None = None
    missing: str = ""
    empty: bytes = b""
    signable: bool = False
    listens: bool = False

    def misfits(self, body: Mapping[str, Any]) -> bool:
        """Tell whether a frame's body lacks a field or has one of another kind."""
        for field in self.fields:
            value = body.get(field.name)
            if value is None:
                if field.required:
                    return True
            elif not field.admits(value):
                return True
        return False


def path(name: str, target: str = "") -> Field:
    """A required text that is a segment of the path."""
    return Field(name, Kind.TEXT, Place.PATH, required=True, target=target)


def _query(name: str, kind: Kind, target: str = "") -> Field:
    return Field(name, kind, Place.QUERY, target=target)


_QUEUE = path("queue_name")
_MESSAGE = path("message_id")
_CLAIM = path("claim_id")
_SUBSCRIPTION = path("subscription_id")
_MARKER = _query("marker", Kind.TEXT)
_LIMIT = _query("limit", Kind.WHOLE)
_TTL = Field("ttl", Kind.WHOLE, Place.FIELD)
_GRACE = Field("grace", Kind.WHOLE, Place.FIELD)
_NO_CLAIM = "Claim {claim_id} does not exist."

_POOL = path("pool_name")
_FLAVOR = path("flavor_name")
_DETAILED = _query("detailed", Kind.FLAG)
_POOL_FIELDS = (
    Field("uri", Kind.TEXT, Place.FIELD),
    Field("weight", Kind.WHOLE, Place.FIELD),
    Field("flavor", Kind.TEXT, Place.FIELD),
    Field("options", Kind.OBJECT, Place.FIELD),
)
_FLAVOR_FIELDS = (
    Field("pool_list", Kind.TEXTS, Place.FIELD),
    Field("capabilities", Kind.OBJECT, Place.FIELD),
)
_ADMIN = (
    Action("pool_list", "list_pools", (_MARKER, _LIMIT, _DETAILED), answers.without_links),
    Action(
        "pool_create",
        "create_pool",
        (_POOL, *_POOL_FIELDS),
        answers.text("Pool {pool_name} created."),
        empty=b"{}",
    ),
    Action("pool_get", "show_pool", (_POOL, _DETAILED)),
    Action("pool_update", "update_pool", (_POOL, *_POOL_FIELDS), empty=b"{}"),
    Action("pool_delete", "delete_pool", (_POOL,), answers.text("Pool {pool_name} removed.")),
    Action("flavor_list", "list_flavors", (_MARKER, _LIMIT, _DETAILED), answers.without_links),
    Action(
        "flavor_create",
        "create_flavor",
        (_FLAVOR, *_FLAVOR_FIELDS),
        answers.text("Flavor {flavor_name} created."),
        empty=b"{}",
    ),
    Action("flavor_get", "show_flavor", (_FLAVOR, _DETAILED)),
    Action("flavor_update", "update_flavor", (_FLAVOR, *_FLAVOR_FIELDS), empty=b"{}"),
    Action(
        "flavor_delete", "delete_flavor", (_FLAVOR,), answers.text("Flavor {flavor_name} removed.")
    ),
)
"""Upstream has schemas of these, and answers 500 to them."""

ACTIONS = (
    Action(
        "queue_list",
        "list_queues",
        (_MARKER, _LIMIT, _query("detailed", Kind.FLAG)),
        answers.without_links,
        handler="list_queues",
    ),
    Action(
        "queue_create",
        "create_queue",
        (_QUEUE, Field("metadata", Kind.OBJECT, Place.DOCUMENT)),
        answers.text("Queue {queue_name} created."),
    ),
    Action("queue_get", "show_queue", (_QUEUE,), handler="get_queue"),
    Action("queue_delete", "delete_queue", (_QUEUE,), answers.text("Queue {queue_name} removed.")),
    Action("queue_get_stats", "queue_stats", (_QUEUE,), handler="stats", statuses={404: 404}),
    Action(
        "queue_purge",
        "purge_queue",
        (_QUEUE, Field("resource_types", Kind.TEXTS, Place.FIELD)),
    ),
    Action(
        "message_list",
        "list_messages",
        (
            *(_QUEUE, _MARKER, _LIMIT),
            *(_query(name, Kind.FLAG) for name in ("echo", "include_claimed", "include_delayed")),
        ),
        answers.messages,
        signable=True,
    ),
    Action(
        "message_post",
        "post_messages",
        (_QUEUE, Field("messages", Kind.LIST, Place.FIELD, required=True)),
        answers.posted,
        signable=True,
    ),
    Action("message_get", "get_message", (_QUEUE, _MESSAGE), answers.message, signable=True),
    Action(
        "message_get_many",
        "list_messages",
        (_QUEUE, Field("message_ids", Kind.TEXTS, Place.QUERY, required=True, target="ids")),
        answers.messages,
        statuses={404: 200},
        signable=True,
    ),
    Action(
        "message_delete",
        "delete_message",
        (_QUEUE, _MESSAGE, _query("claim_id", Kind.TEXT)),
        signable=True,
    ),
    Action(
        "message_delete_many",
        "delete_messages",
        (
            _QUEUE,
            _query("message_ids", Kind.TEXTS, "ids"),
            _query("claim_ids", Kind.TEXTS),
            _query("pop", Kind.WHOLE),
        ),
        answers.messages,
        signable=True,
    ),
    Action("claim_create", "claim_messages", (_QUEUE, _LIMIT, _TTL, _GRACE), answers.claimed),
    Action("claim_get", "show_claim", (_QUEUE, _CLAIM), answers.claim, missing=_NO_CLAIM),
    Action(
        "claim_update",
        "renew_claim",
        (_QUEUE, _CLAIM, _TTL, _GRACE),
        answers.text("Claim {claim_id} updated."),
        missing=_NO_CLAIM,
        empty=b"{}",
    ),
    Action(
        "claim_delete", "release_claim", (_QUEUE, _CLAIM), answers.text("Claim {claim_id} deleted.")
    ),
    Action(
        "subscription_create",
        "create_subscription",
        (
            _QUEUE,
            Field("subscriber", Kind.TEXT, Place.FIELD),
            _TTL,
            Field("options", Kind.OBJECT, Place.FIELD),
        ),
        answers.subscribed,
        handler="subscribe",
        empty=b"{}",
        listens=True,
    ),
    Action(
        "subscription_list",
        "list_subscriptions",
        (_QUEUE, _MARKER, _LIMIT),
        answers.without_links,
    ),
    Action("subscription_get", "show_subscription", (_QUEUE, _SUBSCRIPTION)),
    Action(
        "subscription_delete",
        "delete_subscription",
        (_QUEUE, _SUBSCRIPTION),
        answers.text("Subscription {subscription_id} removed."),
    ),
    Action("get_home_doc", "home", ()),
    Action("ping_node", "ping", ()),
    Action("check_node_health", "health", ()),
    *_ADMIN,
)
