"""The home document: what there is, for clients that ask (zaqar-behaviour 11)."""

from typing import Any

_QUEUE = "/v2/queues/{queue_name}"
_SUBSCRIPTION = _QUEUE + "/subscriptions/{subscription_id}"
_SCHEDULE = "/v2/schedules/{schedule_name}"
_NAME = {"queue_name": "param/queue_name"}


def home_document(*, admin: bool, settles: bool, pools: bool = False) -> dict[str, Any]:
    """Write the home document: what the store can't do and what admin mode adds is told apart."""
    message = {**_NAME, "message_id": "param/message_id"}
    subscription = {**_NAME, "subscription_id": "param/subscription_id"}
    claim = {**_NAME, "claim_id": "param/claim_id"}
    resources = {
        "rel/queues": _resource(
            "/v2/queues{?marker,limit,detailed,name,with_count}",
            {"marker": "param/marker", "limit": "param/queue_limit", "detailed": "param/detailed"},
            "GET",
        ),
        "rel/queue": _resource(_QUEUE, _NAME, "GET", "PUT", "DELETE", "PATCH"),
        "rel/queue_stats": _resource(_QUEUE + "/stats", _NAME, "GET"),
        "rel/queue_share": _resource(_QUEUE + "/share", _NAME, "POST", "DELETE"),
        "rel/queue_purge": _resource(_QUEUE + "/purge", _NAME, "POST"),
        "rel/queue_ranges": _resource(_QUEUE + "/ranges{?count}", _NAME, "GET"),
        "rel/queue_history": _resource(_QUEUE + "/history{?state,marker,limit}", _NAME, "GET"),
        "rel/queue_events": {
            **_resource(
                _QUEUE + "/events{?marker,start,echo,include_delayed,details,seconds}",
                _NAME,
                "GET",
            ),
            "hints": {"allow": ["GET"], "formats": {"text/event-stream": {}}},
        },
        "rel/messages": _resource(
            _QUEUE + "/messages{?marker,limit,echo,include_claimed,include_delayed,wait}",
            _NAME,
            "GET",
        ),
        "rel/post_messages": _resource(_QUEUE + "/messages", _NAME, "POST"),
        "rel/messages_delete": _resource(
            _QUEUE + "/messages{?ids,claim_ids,pop,wait}", _NAME, "DELETE"
        ),
        "rel/message_delete": _resource(
            _QUEUE + "/messages/{message_id}{?claim_id}", message, "DELETE"
        ),
        "rel/message_get": _resource(_QUEUE + "/messages/{message_id}", message, "GET"),
        "rel/message_patch": _resource(
            _QUEUE + "/messages/{message_id}{?claim_id}", message, "PATCH"
        ),
        "rel/claim": _resource(_QUEUE + "/claims/{claim_id}", claim, "GET"),
        "rel/post_claim": _resource(_QUEUE + "/claims{?limit,wait}", _NAME, "POST"),
        "rel/patch_claim": _resource(_QUEUE + "/claims/{claim_id}", claim, "PATCH"),
        "rel/delete_claim": _resource(_QUEUE + "/claims/{claim_id}{?delay}", claim, "DELETE"),
        "rel/subscriptions_get": _resource(
            _QUEUE + "/subscriptions{?marker,limit,details}", _NAME, "GET"
        ),
        "rel/subscriptions_post": _resource(_QUEUE + "/subscriptions", _NAME, "POST"),
        "rel/subscription": _resource(_SUBSCRIPTION, subscription, "GET", "DELETE"),
        "rel/subscription_patch": _resource(_SUBSCRIPTION, subscription, "PATCH"),
        "rel/subscription_confirm": _resource(_SUBSCRIPTION + "/confirm", subscription, "PUT"),
        "rel/subscription_secret": _resource(_SUBSCRIPTION + "/secret", subscription, "POST"),
        "rel/deliveries": _resource(
            _SUBSCRIPTION + "/deliveries{?state,marker,limit}", subscription, "GET"
        ),
        "rel/delivery_retry": _resource(
            _SUBSCRIPTION + "/deliveries/{delivery_id}/retry",
            {**subscription, "delivery_id": "param/delivery_id"},
            "POST",
        ),
        "rel/subscription_replay": _resource(_SUBSCRIPTION + "/replay", subscription, "POST"),
        "rel/subscription_ping": _resource(_SUBSCRIPTION + "/ping", subscription, "POST"),
        **_topics(),
        **_jobs(),
        "rel/ping": {"href": "/v2/ping", "hints": _hints("GET", "HEAD")},
    }
    if settles:
        resources["rel/settle_messages"] = _resource(
            _QUEUE + "/claims/{claim_id}/settle", claim, "POST"
        )
    if admin:
        resources["rel/health"] = {"href": "/v2/health", "hints": _hints("GET")}
    if admin and pools:
        resources.update(_pools())
    return {"resources": resources}


def _pools() -> dict[str, Any]:
    listed = {"marker": "param/marker", "limit": "param/limit", "detailed": "param/detailed"}
    methods = ("GET", "PUT", "PATCH", "DELETE")
    return {
        "rel/pools": _resource("/v2/pools{?marker,limit,detailed}", listed, "GET"),
        "rel/pool": _resource("/v2/pools/{pool_name}", {"pool_name": "param/pool_name"}, *methods),
        "rel/pool_drain": _resource(
            "/v2/pools/{pool_name}/drain", {"pool_name": "param/pool_name"}, "GET", "POST"
        ),
        "rel/flavors": _resource("/v2/flavors{?marker,limit,detailed}", listed, "GET"),
        "rel/flavor": _resource(
            "/v2/flavors/{flavor_name}", {"flavor_name": "param/flavor_name"}, *methods
        ),
    }


def _topics() -> dict[str, Any]:
    topic, name = "/v2/topics/{topic_name}", {"topic_name": "param/topic_name"}
    one = {**name, "subscription_id": "param/subscription_id"}
    subscription = topic + "/subscriptions/{subscription_id}"
    return {
        "rel/topics": _resource(
            "/v2/topics{?marker,limit,detailed,name}", {"marker": "param/marker"}, "GET"
        ),
        "rel/topic": _resource(topic, name, "GET", "PUT", "DELETE", "PATCH"),
        "rel/topic_stats": _resource(topic + "/stats", name, "GET"),
        "rel/topic_purge": _resource(topic + "/purge", name, "POST"),
        "rel/topic_share": _resource(topic + "/share", name, "POST", "DELETE"),
        "rel/topic_messages": _resource(topic + "/messages", name, "GET", "POST"),
        "rel/topic_subscriptions": _resource(
            topic + "/subscriptions{?marker,limit,details}", name, "GET", "POST"
        ),
        "rel/topic_subscription": _resource(subscription, one, "GET", "PATCH", "DELETE"),
    }


def _jobs() -> dict[str, Any]:
    job = {**_NAME, "job_id": "param/job_id"}
    delayed = _QUEUE + "/delayed/{act}"
    act = {"act": "param/act"}
    schedule = {"schedule_name": "param/schedule_name"}
    return {
        "rel/schedules": _resource(
            "/v2/schedules{?marker,limit}", {"marker": "param/marker"}, "GET"
        ),
        "rel/schedule": _resource(_SCHEDULE, schedule, "GET", "PUT", "PATCH", "DELETE"),
        "rel/schedule_fire": _resource(_SCHEDULE + "/fire", schedule, "POST"),
        "rel/redrives": _resource(_QUEUE + "/redrives", _NAME, "GET", "POST"),
        "rel/redrive": _resource(_QUEUE + "/redrives/{job_id}", job, "GET", "DELETE"),
        "rel/delayed_acts": _resource(delayed, {**_NAME, **act}, "GET", "POST"),
        "rel/delayed_act": _resource(delayed + "/{job_id}", {**job, **act}, "GET", "DELETE"),
    }


def _resource(template: str, variables: dict[str, str], *methods: str) -> dict[str, Any]:
    return {"href-template": template, "href-vars": variables, "hints": _hints(*methods)}


def _hints(*methods: str) -> dict[str, Any]:
    hints: dict[str, Any] = {"allow": list(methods), "formats": {"application/json": {}}}
    if "POST" in methods:
        hints["accept-post"] = ["application/json"]
    return hints
