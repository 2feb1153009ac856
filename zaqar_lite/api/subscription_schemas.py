"""The documents of subscriptions and deliveries as JSON schemas."""

from zaqar_lite.api.schema import COUNT, LINKS, TEXT, Schema, list_of, object_of
from zaqar_lite.domain.subscriptions import MAX_SUBSCRIBER, MIN_TTL


def subscription_schemas() -> dict[str, Schema]:
    """The schemas of subscriptions."""
    options: Schema = {
        "type": "object",
        "properties": {
            "post_data": TEXT,
            "post_headers": {"type": "object", "additionalProperties": TEXT},
            "_retry_policy": {"type": "object"},
            "dead_letter_queue": TEXT,
            "events_queue": TEXT,
            "from": TEXT,
            "subject": TEXT,
        },
    }
    ttl: Schema = {"type": "integer", "minimum": MIN_TTL}
    subscriber: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_SUBSCRIBER}
    shown = object_of(
        ("id", "source", "subscriber", "ttl", "age", "options", "confirmed"),
        id=TEXT,
        source=TEXT,
        subscriber=TEXT,
        ttl=COUNT,
        age=COUNT,
        options={"type": "object"},
        confirmed={"type": "boolean"},
        created=TEXT,
        disabled={"type": ["object", "null"]},
    )
    return {
        "Subscription": object_of(("subscriber",), subscriber=subscriber, ttl=ttl, options=options),
        "SubscriptionChange": object_of(
            subscriber=subscriber, ttl=ttl, options=options, disabled={"enum": [False]}
        ),
        "Subscribed": object_of(("subscription_id",), subscription_id=TEXT, secret=TEXT),
        "SubscriptionShown": shown,
        "Subscriptions": object_of(
            ("subscriptions", "links"), subscriptions=list_of(shown), links=LINKS
        ),
        "Deliveries": object_of(
            ("deliveries", "links"), deliveries=list_of({"type": "object"}), links=LINKS
        ),
        "Pinged": object_of(
            ("outcome", "milliseconds"),
            outcome=TEXT,
            status={"type": ["integer", "null"]},
            milliseconds=COUNT,
            answer=TEXT,
            error=TEXT,
        ),
        "Replay": object_of((), **{"from": TEXT, "until": TEXT, "marker": TEXT}),
        "Replayed": object_of(
            ("replayed", "marker"), replayed=COUNT, marker={"type": ["string", "null"]}
        ),
        "SubscriptionSecret": object_of(("secret",), secret=TEXT),
        "Confirmation": object_of(("confirmed",), confirmed={"type": "boolean"}, token=TEXT),
    }
