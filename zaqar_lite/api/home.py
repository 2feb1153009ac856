"""The home document: what there is, for clients that ask (zaqar-behaviour 11)."""

import re
from typing import Any

from zaqar_lite.domain.limits import Limits

_EVENTS = "rel/queue_events"
_NAMES = {"Q": "/v2/queues/{queue_name}", "T": "/v2/topics/{topic_name}"}
_HEALTH = "health /v2/health GET"
_PARAMETERS = {
    "queues": {"marker": "marker", "limit": "queue_limit", "detailed": "detailed"},
    "topics": {"marker": "marker"},
    "schedules": {"marker": "marker"},
    "pools": {"marker": "marker", "limit": "limit", "detailed": "detailed"},
    "flavors": {"marker": "marker", "limit": "limit", "detailed": "detailed"},
}
"""What lists are asked by, under its names."""
_RESOURCES = """
queues /v2/queues{?marker,limit,detailed,name,with_count} GET
queue Q GET PUT DELETE PATCH
queue_stats Q/stats GET
queue_share Q/share POST DELETE
queue_purge Q/purge POST
queue_ranges Q/ranges{?count} GET
queue_history Q/history{?state,marker,limit} GET
queue_events Q/events{?marker,start,echo,include_delayed,details,seconds} GET
messages Q/messages{?marker,limit,echo,include_claimed,include_delayed,wait} GET
post_messages Q/messages POST
messages_delete Q/messages{?ids,claim_ids,pop,wait} DELETE
message_delete Q/messages/{message_id}{?claim_id} DELETE
message_get Q/messages/{message_id} GET
message_patch Q/messages/{message_id}{?claim_id} PATCH
claim Q/claims/{claim_id} GET
post_claim Q/claims{?limit,wait} POST
patch_claim Q/claims/{claim_id} PATCH
delete_claim Q/claims/{claim_id}{?delay} DELETE
subscriptions_get Q/subscriptions{?marker,limit,details} GET
subscriptions_post Q/subscriptions POST
subscription Q/subscriptions/{subscription_id} GET DELETE
subscription_patch Q/subscriptions/{subscription_id} PATCH
subscription_confirm Q/subscriptions/{subscription_id}/confirm PUT
subscription_secret Q/subscriptions/{subscription_id}/secret POST
deliveries Q/subscriptions/{subscription_id}/deliveries{?state,marker,limit} GET
delivery_retry Q/subscriptions/{subscription_id}/deliveries/{delivery_id}/retry POST
subscription_replay Q/subscriptions/{subscription_id}/replay POST
subscription_ping Q/subscriptions/{subscription_id}/ping POST
topics /v2/topics{?marker,limit,detailed,name} GET
topic T GET PUT DELETE PATCH
topic_stats T/stats GET
topic_purge T/purge POST
topic_share T/share POST DELETE
topic_messages T/messages GET POST
topic_subscriptions T/subscriptions{?marker,limit,details} GET POST
topic_subscription T/subscriptions/{subscription_id} GET PATCH DELETE
schedules /v2/schedules{?marker,limit} GET
schedule /v2/schedules/{schedule_name} GET PUT PATCH DELETE
schedule_fire /v2/schedules/{schedule_name}/fire POST
redrives Q/redrives GET POST
redrive Q/redrives/{job_id} GET DELETE
delayed_acts Q/delayed/{act} GET POST
delayed_act Q/delayed/{act}/{job_id} GET DELETE
settle_messages Q/claims/{claim_id}/settle POST
ping /v2/ping GET HEAD
"""
"""Each resource: its name, its template with Q for a queue and T for a topic, and its methods."""
_POOLS = """
pools /v2/pools{?marker,limit,detailed} GET
pool /v2/pools/{pool_name} GET PUT PATCH DELETE
pool_drain /v2/pools/{pool_name}/drain GET POST
flavors /v2/flavors{?marker,limit,detailed} GET
flavor /v2/flavors/{flavor_name} GET PUT PATCH DELETE
"""


def home_document(limits: Limits, *, admin: bool, pools: bool) -> dict[str, Any]:
    """Write the home document: the resources of this server, its longest delay and largest pages.

    Health is there in admin mode, pools are there where they are switched on as well.
    """
    lines = _RESOURCES.split("\n")
    if admin:
        lines.append(_HEALTH)
    if admin and pools:
        lines += _POOLS.split("\n")
    resources = dict(_resource(*line.split(" ")) for line in lines if line)
    resources[_EVENTS]["hints"]["formats"] = {"text/event-stream": {}}
    resources["rel/post_messages"]["hints"]["max-message-delay"] = limits.max_message_delay
    resources["rel/messages"]["hints"]["max-limit"] = limits.max_messages_per_page
    resources["rel/messages"]["hints"]["max-large-limit"] = limits.page(large=True)
    resources["rel/post_claim"]["hints"]["max-limit"] = limits.max_messages_per_claim_or_pop
    resources["rel/post_claim"]["hints"]["max-large-limit"] = limits.claim(large=True)
    return {"resources": resources}


def _resource(name: str, template: str, *methods: str) -> tuple[str, dict[str, Any]]:
    template = _NAMES.get(template[0], template[0]) + template[1:]
    names = re.findall(r"{(\w+)}", template)
    variables = {one: one for one in names} or _PARAMETERS.get(name, {})
    hints: dict[str, Any] = {"allow": list(methods), "formats": {"application/json": {}}}
    if "POST" in methods:
        hints["accept-post"] = ["application/json"]
    if not variables:
        return f"rel/{name}", {"href": template, "hints": hints}
    marked = {one: f"param/{called}" for one, called in variables.items()}
    return f"rel/{name}", {"href-template": template, "href-vars": marked, "hints": hints}
