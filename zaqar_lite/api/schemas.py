"""The documents of the API as JSON schemas, for the OpenAPI document."""

from typing import Any

from zaqar_lite.domain.attempts import MAX_DETAIL, MAX_REASON, Ended
from zaqar_lite.domain.groups import MAX_GROUP
from zaqar_lite.domain.limits import MAX_PROJECT_ID, Limits
from zaqar_lite.domain.quotas import LARGEST, NAMES, RATES
from zaqar_lite.domain.subscriptions import MAX_SUBSCRIBER, MIN_TTL
from zaqar_lite.service.identity.keys import (
    LONGEST_LIFE,
    LONGEST_OVERLAP,
    MAX_DESCRIPTION,
    MOST_LISTED,
)

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_ANY: Schema = {}


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_LINKS = _list(_object(("rel", "href"), rel=_TEXT, href=_TEXT))
_DEAD_LETTER: Schema = {
    "anyOf": [
        {"type": "null"},
        _object(
            ("source", "moved_at", "claim_count"),
            source=_TEXT,
            moved_at=_TEXT,
            claim_count=_COUNT,
            last_claim_id={"type": ["string", "null"]},
            last_client_id={"type": ["string", "null"]},
            reason=_TEXT,
            redriven=_COUNT,
        ),
    ]
}
_ATTEMPT = _object(
    ("number", "claimed_at", "ended_at", "outcome", "delay"),
    number=_COUNT,
    claimed_at=_TEXT,
    ended_at=_TEXT,
    outcome={"enum": [outcome.value for outcome in Ended]},
    delay=_COUNT,
    reason={"type": ["string", "null"]},
    detail={"type": ["string", "null"]},
    client_id={"type": ["string", "null"]},
)
_MESSAGE = _object(
    ("id", "href", "ttl", "age", "body"),
    id=_TEXT,
    href=_TEXT,
    ttl=_COUNT,
    age=_COUNT,
    body=_ANY,
    checksum=_TEXT,
    claim_count=_COUNT,
    failure_count=_COUNT,
    parked_until={"type": ["string", "null"]},
    attempts=_list(_ATTEMPT),
    created=_TEXT,
    delay_expires={"type": ["string", "null"]},
    headers={"type": ["object", "null"]},
    group={"type": ["string", "null"]},
    dead_letter=_DEAD_LETTER,
)
_POPPED = _object(
    ("id", "ttl", "age", "body", "claim_id", "claim_count"),
    id=_TEXT,
    ttl=_COUNT,
    age=_COUNT,
    body=_ANY,
    claim_id={"type": ["string", "null"]},
    claim_count=_COUNT,
    checksum=_TEXT,
)
_KEY_DOCUMENT = _object(
    ("id", "project", "grants", "created_at", "expires_at", "disabled"),
    id=_TEXT,
    project={"type": ["string", "null"]},
    grants=_list(_TEXT),
    created_at=_TEXT,
    created_by={"type": ["string", "null"]},
    expires_at={"type": ["string", "null"]},
    disabled={"type": "boolean"},
    description=_TEXT,
)
_MADE_KEY: Schema = {**_KEY_DOCUMENT, "properties": {**_KEY_DOCUMENT["properties"], "key": _TEXT}}
_QUOTAS: Schema = {
    **_object(
        (),
        **{
            name: {
                "type": ["integer", "null"],
                "minimum": 1 if name in RATES else 0,
                "maximum": LARGEST,
            }
            for name in NAMES
        },
    ),
    "additionalProperties": False,
}
_USAGE: Schema = {"type": "object", "additionalProperties": {"type": ["integer", "null"]}}
_END = _object(("href", "age", "created"), href=_TEXT, age=_COUNT, created=_TEXT)


def schemas(limits: Limits) -> dict[str, Schema]:
    """All schemas by name, with the limits of this server."""
    ttl: Schema = {"type": "integer", "minimum": 60, "maximum": limits.max_message_ttl}
    delay: Schema = {"type": "integer", "minimum": 0, "maximum": limits.max_message_delay}
    claim_ttl: Schema = {
        "type": ["integer", "null"],
        "minimum": 60,
        "maximum": limits.max_claim_ttl,
    }
    claim_grace: Schema = {
        "type": ["integer", "null"],
        "minimum": 60,
        "maximum": limits.max_claim_grace,
    }
    return {
        **_parameters(limits),
        **_subscriptions(),
        **_jobs(),
        "Error": _object(("title",), title=_TEXT, description=_TEXT),
        "Metadata": {"type": "object", "additionalProperties": True},
        "MetadataPatch": _list(
            _object(
                ("op", "path"),
                op={"enum": ["add", "remove", "replace"]},
                path={"type": "string", "pattern": "^/metadata/"},
                value=_ANY,
            )
        ),
        "Queues": _object(
            ("queues", "links"),
            queues=_list(
                _object(("name", "href"), name=_TEXT, href=_TEXT, metadata={"type": "object"})
            ),
            links=_LINKS,
            count=_COUNT,
        ),
        "Depth": _object(
            ("depth", "ready", "delayed", "claimed", "oldest_ready_seconds"),
            depth=_COUNT,
            ready=_COUNT,
            delayed=_COUNT,
            claimed=_COUNT,
            oldest_ready_seconds={"type": "number", "minimum": 0},
        ),
        "Stats": _object(
            ("messages",),
            messages=_object(
                ("claimed", "free", "total"),
                claimed=_COUNT,
                free=_COUNT,
                total=_COUNT,
                ready=_COUNT,
                delayed=_COUNT,
                oldest=_END,
                newest=_END,
            ),
        ),
        "Purge": _object(
            ("resource_types",), resource_types=_list({"enum": ["messages", "subscriptions"]})
        ),
        "Share": _object(
            paths=_list({"enum": ["messages", "subscriptions", "claims"]}),
            methods=_list({"enum": ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]}),
            expires={"type": ["string", "null"], "format": "date-time"},
        ),
        "SignedUrl": _object(
            ("paths", "methods", "project", "expires", "signature"),
            paths=_list(_TEXT),
            methods=_list(_TEXT),
            project=_TEXT,
            expires=_TEXT,
            signature=_TEXT,
        ),
        "History": _object(
            ("messages", "links"),
            messages=_list(
                _object(
                    ("id", "at", "attempts"),
                    id=_TEXT,
                    at=_TEXT,
                    attempts=_COUNT,
                    consumers=_list(_TEXT),
                )
            ),
            links=_LINKS,
        ),
        "Messages": _object(
            ("messages",),
            messages={
                **_list(
                    _object(
                        ("body",),
                        body=_ANY,
                        ttl=ttl,
                        delay=delay,
                        idempotency_key={"type": "string", "minLength": 1, "maxLength": 128},
                        headers={"type": "object", "additionalProperties": _TEXT},
                        group={"type": "string", "minLength": 1, "maxLength": MAX_GROUP},
                        deliver_at=_TEXT,
                    )
                ),
                "minItems": 1,
            },
        ),
        "Resources": _object(("resources",), resources=_list(_TEXT), duplicates=_list(_TEXT)),
        "Edit": {
            "anyOf": [
                {
                    **_object(body=_ANY, ttl=ttl, delay=delay),
                    "additionalProperties": False,
                    "minProperties": 1,
                },
                {**_object(("claim",), claim=_object()), "additionalProperties": False},
            ]
        },
        "Settlements": {
            **_object(
                delete=_list(_TEXT),
                release=_list(
                    _object(
                        ("id",),
                        id=_TEXT,
                        delay={"type": "integer", "minimum": 0, "maximum": limits.max_claim_ttl},
                        failed={"type": "boolean"},
                        reason={"type": "string", "maxLength": MAX_REASON},
                        detail={"type": "string", "maxLength": MAX_DETAIL},
                    )
                ),
                extend=_list(_object(("id", "ttl"), id=_TEXT, ttl=claim_ttl)),
                dead=_list(
                    _object(
                        ("id",),
                        id=_TEXT,
                        reason={"type": "string", "maxLength": MAX_REASON},
                        detail={"type": "string", "maxLength": MAX_DETAIL},
                    )
                ),
            ),
            "additionalProperties": False,
        },
        "Settled": _object(
            ("results",),
            results=_list(
                _object(("id", "status"), id=_TEXT, status=_COUNT, outcome=_TEXT, description=_TEXT)
            ),
        ),
        "Message": _MESSAGE,
        "MessageList": _object(("messages",), messages=_list(_MESSAGE), links=_LINKS),
        "Popped": _object(("messages",), messages=_list(_POPPED)),
        "Ranges": _object(("ranges",), ranges=_list(_object(marker=_TEXT, until=_TEXT))),
        "DataKeys": _object(
            ("data_keys",),
            data_keys=_list(
                _object(
                    ("id", "created_at", "server_key", "current"),
                    id=_TEXT,
                    created_at=_TEXT,
                    server_key=_TEXT,
                    current={"type": "boolean"},
                )
            ),
        ),
        "Key": _KEY_DOCUMENT,
        "MadeKey": _MADE_KEY,
        "Keys": _object(("keys", "links"), keys=_list(_KEY_DOCUMENT), links=_LINKS),
        "NewKey": _object(
            ("grants",),
            grants=_list({"type": "string", "pattern": "^!?[a-z*]+:[a-zA-Z0-9_.*?-]{1,64}$"}),
            project={"type": ["string", "null"], "minLength": 1, "maxLength": MAX_PROJECT_ID},
            expires={"type": ["integer", "null"], "minimum": 1, "maximum": LONGEST_LIFE},
            description={"type": "string", "maxLength": MAX_DESCRIPTION},
        ),
        "KeyChange": {
            **_object(("disabled",), disabled={"type": "boolean"}),
            "additionalProperties": False,
        },
        "Quota": _object(
            ("project", "quotas", "usage"), project=_TEXT, quotas=_QUOTAS, usage=_USAGE, own=_QUOTAS
        ),
        "Quotas": _QUOTAS,
        "KeyOverlap": _object(
            overlap={"type": ["integer", "null"], "minimum": 0, "maximum": LONGEST_OVERLAP}
        ),
        "Claim": _object(ttl=claim_ttl, grace=claim_grace),
        "Claimed": _object(("messages",), messages=_list(_MESSAGE)),
        "ClaimShown": _object(
            ("age", "ttl", "href", "messages"),
            age=_COUNT,
            ttl=_COUNT,
            href=_TEXT,
            messages=_list(_MESSAGE),
        ),
    }


def _jobs() -> dict[str, Schema]:
    """The schemas of jobs and schedules."""
    count: Schema = {"type": "integer", "minimum": 1}
    shown = _object(
        ("id", "act", "state", "selected", "done", "refused"),
        id=_TEXT,
        act=_TEXT,
        order={"type": "object"},
        state={"enum": ["running", "completed", "cancelled", "failed"]},
        created=_TEXT,
        ended={"type": ["string", "null"]},
        total=_COUNT,
        examined=_COUNT,
        selected=_COUNT,
        done=_COUNT,
        refused={"type": "object", "additionalProperties": _COUNT},
        rate={"type": "number"},
        remaining={"type": ["integer", "null"]},
        sample=_list({"type": "object"}),
        error=_TEXT,
    )
    body: Schema = {}
    schedule = _object(
        name=_TEXT,
        queue=_TEXT,
        body=body,
        ttl=count,
        delay=_COUNT,
        headers={"type": "object", "additionalProperties": _TEXT},
        group=_TEXT,
        cron=_TEXT,
        every={"type": ["integer", "string"]},
        at=_TEXT,
        time_zone=_TEXT,
        start=_TEXT,
        end=_TEXT,
        jitter={"type": ["integer", "string"]},
        missed={"enum": ["skip", "one", "all"]},
        catch_up={"type": ["integer", "string"]},
        overlap={"enum": ["allow", "skip"]},
        paused={"type": "boolean"},
    )
    return {
        "Schedule": schedule,
        "Schedules": _object(("schedules", "links"), schedules=_list(schedule), links=_LINKS),
        "Fired": _object(("message_id",), message_id=_TEXT),
        "Job": _object(
            ids=_list(_TEXT),
            filter={"type": "object"},
            dry_run={"type": "boolean"},
            max_per_second=count,
            limit=count,
            to=_TEXT,
            by={"type": "integer"},
            reset={"enum": ["counts", "none"]},
            delay=_COUNT,
            ttl=_COUNT,
            force={"type": "boolean"},
        ),
        "JobShown": shown,
        "Jobs": _object(("jobs",), jobs=_list(shown)),
    }


def _subscriptions() -> dict[str, Schema]:
    """The schemas of subscriptions."""
    options: Schema = {
        "type": "object",
        "properties": {
            "post_data": _TEXT,
            "post_headers": {"type": "object", "additionalProperties": _TEXT},
            "_retry_policy": {"type": "object"},
            "dead_letter_queue": _TEXT,
            "events_queue": _TEXT,
            "from": _TEXT,
            "subject": _TEXT,
        },
    }
    ttl: Schema = {"type": "integer", "minimum": MIN_TTL}
    subscriber: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_SUBSCRIBER}
    shown = _object(
        ("id", "source", "subscriber", "ttl", "age", "options", "confirmed"),
        id=_TEXT,
        source=_TEXT,
        subscriber=_TEXT,
        ttl=_COUNT,
        age=_COUNT,
        options={"type": "object"},
        confirmed={"type": "boolean"},
        created=_TEXT,
        disabled={"type": ["object", "null"]},
    )
    return {
        "Subscription": _object(("subscriber",), subscriber=subscriber, ttl=ttl, options=options),
        "SubscriptionChange": _object(
            subscriber=subscriber, ttl=ttl, options=options, disabled={"enum": [False]}
        ),
        "Subscribed": _object(("subscription_id",), subscription_id=_TEXT, secret=_TEXT),
        "SubscriptionShown": shown,
        "Subscriptions": _object(
            ("subscriptions", "links"), subscriptions=_list(shown), links=_LINKS
        ),
        "Deliveries": _object(
            ("deliveries", "links"), deliveries=_list({"type": "object"}), links=_LINKS
        ),
        "Pinged": _object(
            ("outcome", "milliseconds"),
            outcome=_TEXT,
            status={"type": ["integer", "null"]},
            milliseconds=_COUNT,
            answer=_TEXT,
            error=_TEXT,
        ),
        "Replay": _object((), **{"from": _TEXT, "until": _TEXT, "marker": _TEXT}),
        "Replayed": _object(
            ("replayed", "marker"), replayed=_COUNT, marker={"type": ["string", "null"]}
        ),
        "SubscriptionSecret": _object(("secret",), secret=_TEXT),
        "Confirmation": _object(("confirmed",), confirmed={"type": "boolean"}, token=_TEXT),
    }


def _parameters(limits: Limits) -> dict[str, Schema]:
    """The schemas of parameters and headers."""
    return {
        "Text": _TEXT,
        "Flag": {"type": "boolean"},
        "Key": {"type": "string", "pattern": "^[ -~]{1,128}$"},
        "QueueName": {
            "type": "string",
            "pattern": "^[a-zA-Z0-9_.-]{1,64}$",
            "not": {"enum": [".", ".."]},
        },
        "DeliveryState": {"enum": ["last", "failed"]},
        "HistoryState": {"enum": ["done", "failed"]},
        "PageLimit": _whole(limits.max_messages_per_page),
        "SubscriptionLimit": _whole(limits.max_subscriptions_per_page),
        "QueueLimit": _whole(limits.max_queues_per_page),
        "ClaimLimit": _whole(limits.max_messages_per_claim_or_pop),
        "Delay": {"type": "integer", "minimum": 0, "maximum": limits.max_claim_ttl},
        "Wait": {"type": "integer", "minimum": 0, "maximum": limits.max_wait},
        "KeyLimit": _whole(MOST_LISTED),
        "RangeCount": _whole(limits.max_ranges),
    }


def _whole(most: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most}
