"""The home document: what there is, for clients that ask (zaqar-behaviour 11).

It is made from the table of routes, so that no route is missing. A route is a resource of its own,
under its name; where upstream has another name, or one for several methods, that is in `_NAMES`.
"""

import re
from collections.abc import Iterable
from typing import Any

from zaqar_lite.api.request import Route
from zaqar_lite.domain.limits import Limits

_NAMES = {
    "list_queues": "queues",
    **dict.fromkeys(("create_queue", "show_queue", "update_queue", "delete_queue"), "queue"),
    **dict.fromkeys(("share_queue", "unshare_queue"), "queue_share"),
    "purge_queue": "queue_purge",
    "stream_events": "queue_events",
    "list_messages": "messages",
    "delete_messages": "messages_delete",
    "delete_message": "message_delete",
    "get_message": "message_get",
    "edit_message": "message_patch",
    "show_claim": "claim",
    "claim_messages": "post_claim",
    "renew_claim": "patch_claim",
    "release_claim": "delete_claim",
    "list_subscriptions": "subscriptions_get",
    "create_subscription": "subscriptions_post",
    **dict.fromkeys(("show_subscription", "delete_subscription"), "subscription"),
    "update_subscription": "subscription_patch",
    "confirm_subscription": "subscription_confirm",
    "rotate_secret": "subscription_secret",
    "list_deliveries": "deliveries",
    "retry_delivery": "delivery_retry",
    "replay_messages": "subscription_replay",
    "ping_subscription": "subscription_ping",
    "list_topics": "topics",
    **dict.fromkeys(("create_topic", "show_topic", "update_topic", "delete_topic"), "topic"),
    **dict.fromkeys(("share_topic", "unshare_topic"), "topic_share"),
    "purge_topic": "topic_purge",
    **dict.fromkeys(("topic_list_messages", "topic_post_messages"), "topic_messages"),
    **dict.fromkeys(
        ("topic_create_subscription", "topic_list_subscriptions"), "topic_subscriptions"
    ),
    **dict.fromkeys(
        ("topic_show_subscription", "topic_update_subscription", "topic_delete_subscription"),
        "topic_subscription",
    ),
    "list_schedules": "schedules",
    **dict.fromkeys(
        ("put_schedule", "show_schedule", "change_schedule", "delete_schedule"), "schedule"
    ),
    "fire_schedule": "schedule_fire",
    **dict.fromkeys(("begin_redrive", "list_redrives"), "redrives"),
    **dict.fromkeys(("show_redrive", "cancel_redrive"), "redrive"),
    **dict.fromkeys(("begin_delayed_act", "list_delayed_acts"), "delayed_acts"),
    **dict.fromkeys(("show_delayed_act", "cancel_delayed_act"), "delayed_act"),
    "ping_head": "ping",
    "list_pools": "pools",
    **dict.fromkeys(("show_pool", "create_pool", "update_pool", "delete_pool"), "pool"),
    **dict.fromkeys(("drain_pool", "show_pool_drain"), "pool_drain"),
    "list_flavors": "flavors",
    **dict.fromkeys(("show_flavor", "create_flavor", "update_flavor", "delete_flavor"), "flavor"),
    "livez_head": "livez",
    "readyz_head": "readyz",
    "home_without_slash": "home",
}
"""The resources of the routes that are not named as their routes."""
_UPSTREAMS = {("queues", "limit"): "queue_limit"}
"""What upstream calls a variable of a resource, where that is not its name."""
_VARIABLE = re.compile(r"{(\w+)}")


def home_document(routes: Iterable[Route], limits: Limits) -> dict[str, Any]:
    """Write the home document: the routes that are served, the longest delay, the largest pages."""
    resources: dict[str, list[Route]] = {}
    for route in routes:
        resources.setdefault(_NAMES.get(route.name, route.name), []).append(route)
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
