"""The home document: what there is, for clients that ask (zaqar-behaviour 11).

It is made from the table of routes, so that no route is missing. Routes of the same `rel` are one
resource.
"""

import re
from collections.abc import Iterable
from typing import Any

from zaqar_lite.api.request import Route
from zaqar_lite.domain.limits import Limits

_UPSTREAMS = {("queues", "limit"): "queue_limit"}
"""What upstream calls a variable of a resource, where that is not its name."""
_VARIABLE = re.compile(r"{(\w+)}")


def home_document(routes: Iterable[Route], limits: Limits) -> dict[str, Any]:
    """Write the home document: v2's routes, the longest delay, the largest pages."""
    resources: dict[str, list[Route]] = {}
    for route in routes:
        if not route.template.startswith("/v2"):
            continue  # upstream's clients may join what they find here to a URL that ends with /v2
        resources.setdefault(route.rel, []).append(route)
    shown = {f"rel/{name}": _resource(name, group) for name, group in resources.items()}
    shown["rel/post_messages"]["hints"]["max-message-delay"] = limits.max_message_delay
    for name, most in (("messages", limits.page), ("post_claim", limits.claim)):
        hints = shown[f"rel/{name}"]["hints"]
        hints["max-limit"], hints["max-large-limit"] = most(large=False), most(large=True)
    return {"resources": shown}


def _resource(name: str, routes: list[Route]) -> dict[str, Any]:
    """Describe the methods of one path, which are one resource."""
    template = routes[0].template
    asked = [one.name for route in routes for one in route.parameters if one.place == "query"]
    query = list(dict.fromkeys(asked))
    variables = [*_VARIABLE.findall(template), *query]
    methods = [route.method for route in routes]
    hints: dict[str, Any] = {"allow": methods, "formats": {_media_type(routes[0]): {}}}
    if "POST" in methods:
        hints["accept-post"] = ["application/json"]
    if not variables:
        return {"href": template, "hints": hints}
    if query:
        template += f"{{?{','.join(query)}}}"
    marked = {one: f"param/{_UPSTREAMS.get((name, one), one)}" for one in variables}
    return {"href-template": template, "href-vars": marked, "hints": hints}


def _media_type(route: Route) -> str:
    if route.streams:
        return "text/event-stream"
    return "text/plain" if route.plain else "application/json"
