"""Make of a frame the request that its action's route takes."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from zaqar_lite.api.http import Request, Scope
from zaqar_lite.api.routes import Handler, Node, Route, RouteTree
from zaqar_lite.api.websocket.actions import ACTIONS, Action, Field, Kind, Place
from zaqar_lite.api.websocket.encoding import Frame

_VARIABLE = re.compile(r"{(\w+)}")


class Served(NamedTuple):
    """An action that this server has: its route, the route's place, and who answers."""

    action: Action
    route: Route
    node: Node
    handler: Handler


def served_actions(tree: RouteTree, handlers: object) -> dict[str, Served | None]:
    """Every action by name; None where this server has not its route."""
    routes = {route.name: route for route in tree.routes}
    served: dict[str, Served | None] = {}
    for action in ACTIONS:
        route = routes.get(action.route)
        place = None if route is None else tree.find(route.template)
        if route is None or place is None:
            served[action.name] = None
            continue
        handler = getattr(handlers, action.handler) if action.handler else route.handler
        served[action.name] = Served(action, route, place[0], handler)
    return served


def make_request(served: Served, frame: Frame, headers: dict[bytes, bytes]) -> Request:
    """Make the request; the fields of the frame fit the action.

    Raises:
        Unreadable: a binary frame holds what JSON has no form for.
    """
    action, route, given = served.action, served.route, frame.body or {}
    present = [field for field in action.fields if given.get(field.name) is not None]
    values = {
        field.target or field.name: given[field.name]
        for field in present
        if field.place is Place.PATH
    }
    body = _document(action, frame, present)
    if body:
        headers[b"content-length"] = b"%d" % len(body)
    request = Request(
        route.method,
        _VARIABLE.sub(lambda found: quote(values[found[1]], safe=""), route.template),
        _query(given, present),
        headers,
        _giving(body),
    )
    request.path_values = tuple(values[name] for name in _VARIABLE.findall(route.template))
    return request


def _document(action: Action, frame: Frame, present: list[Field]) -> bytes:
    parts = []
    for field in present:
        if field.place is Place.DOCUMENT:
            return frame.text_of(field.name)
        if field.place is Place.FIELD:
            parts.append(b'"%b":%b' % (field.name.encode(), frame.text_of(field.name)))
    return b"{%b}" % b",".join(parts) if parts else action.empty


def _query(given: Mapping[str, Any], present: list[Field]) -> bytes:
    pairs = []
    for field in present:
        if field.place is not Place.QUERY:
            continue
        value = given[field.name]
        match field.kind:
            case Kind.FLAG:
                text = "true" if value else "false"
            case Kind.TEXTS:
                text = ",".join(quote(one, safe="") for one in value)
            case _:
                text = quote(str(value), safe="")
        pairs.append(f"{field.target or field.name}={text}")
    return "&".join(pairs).encode()


def _giving(body: bytes) -> Any:  # noqa: ANN401 - an ASGI receive
    async def receive() -> Scope:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
