"""The documents of the API as JSON schemas, for the OpenAPI document."""

from zaqar_lite.api.job_schemas import job_schemas
from zaqar_lite.api.pool_schemas import pool_schemas
from zaqar_lite.api.schema import ANY, COUNT, LINKS, TEXT, Schema, list_of, object_of
from zaqar_lite.api.subscription_schemas import subscription_schemas
from zaqar_lite.domain.attempts import MAX_DETAIL, MAX_REASON, Ended
from zaqar_lite.domain.groups import MAX_GROUP
from zaqar_lite.domain.limits import MAX_PROJECT_ID, Limits
from zaqar_lite.domain.quotas import LARGEST, NAMES, RATES
from zaqar_lite.service.events import LONGEST
from zaqar_lite.service.identity.keys import (
    LONGEST_LIFE,
    LONGEST_OVERLAP,
    MAX_DESCRIPTION,
    MOST_LISTED,
)

_DEAD_LETTER: Schema = {
    "anyOf": [
        {"type": "null"},
        object_of(
            ("source", "moved_at", "claim_count"),
            source=TEXT,
            moved_at=TEXT,
            claim_count=COUNT,
            last_claim_id={"type": ["string", "null"]},
            last_client_id={"type": ["string", "null"]},
            reason=TEXT,
            redriven=COUNT,
        ),
    ]
}
_ATTEMPT = object_of(
    ("number", "claimed_at", "ended_at", "outcome", "delay"),
    number=COUNT,
    claimed_at=TEXT,
    ended_at=TEXT,
    outcome={"enum": [outcome.value for outcome in Ended]},
    delay=COUNT,
    reason={"type": ["string", "null"]},
    detail={"type": ["string", "null"]},
    client_id={"type": ["string", "null"]},
)
_MESSAGE = object_of(
    ("id", "href", "ttl", "age", "body"),
    id=TEXT,
    href=TEXT,
    ttl=COUNT,
    age=COUNT,
    body=ANY,
    checksum=TEXT,
    claim_count=COUNT,
    failure_count=COUNT,
    parked_until={"type": ["string", "null"]},
    attempts=list_of(_ATTEMPT),
    created=TEXT,
    delay_expires={"type": ["string", "null"]},
    headers={"type": ["object", "null"]},
    group={"type": ["string", "null"]},
    dead_letter=_DEAD_LETTER,
)
_POPPED = object_of(
    ("id", "ttl", "age", "body", "claim_id", "claim_count"),
    id=TEXT,
    ttl=COUNT,
    age=COUNT,
    body=ANY,
    claim_id={"type": ["string", "null"]},
    claim_count=COUNT,
    checksum=TEXT,
)
_KEY_DOCUMENT = object_of(
    ("id", "project", "grants", "created_at", "expires_at", "disabled"),
    id=TEXT,
    project={"type": ["string", "null"]},
    grants=list_of(TEXT),
    created_at=TEXT,
    created_by={"type": ["string", "null"]},
    expires_at={"type": ["string", "null"]},
    disabled={"type": "boolean"},
    description=TEXT,
)
_MADE_KEY: Schema = {**_KEY_DOCUMENT, "properties": {**_KEY_DOCUMENT["properties"], "key": TEXT}}
_QUOTAS: Schema = {
    **object_of(
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
_END = object_of(("href", "age", "created"), href=TEXT, age=COUNT, created=TEXT)


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
        **subscription_schemas(),
        **job_schemas(),
        **pool_schemas(),
        "Error": object_of(("title",), title=TEXT, description=TEXT),
        "Metadata": {"type": "object", "additionalProperties": True},
        "MetadataPatch": list_of(
            object_of(
                ("op", "path"),
                op={"enum": ["add", "remove", "replace"]},
                path={"type": "string", "pattern": "^/metadata/"},
                value=ANY,
            )
        ),
        "Queues": object_of(
            ("queues", "links"),
            queues=list_of(
                object_of(("name", "href"), name=TEXT, href=TEXT, metadata={"type": "object"})
            ),
            links=LINKS,
            count=COUNT,
        ),
        "Topics": object_of(
            ("topics", "links"),
            topics=list_of(
                object_of(("name", "href"), name=TEXT, href=TEXT, metadata={"type": "object"})
            ),
            links=LINKS,
        ),
        "TopicStats": object_of(
            ("messages",),
            messages=object_of(("total",), claimed=COUNT, free=COUNT, total=COUNT),
        ),
        "Depth": object_of(
            ("depth", "ready", "delayed", "claimed", "oldest_ready_seconds"),
            depth=COUNT,
            ready=COUNT,
            delayed=COUNT,
            claimed=COUNT,
            oldest_ready_seconds={"type": "number", "minimum": 0},
        ),
        "Stats": object_of(
            ("messages",),
            messages=object_of(
                ("claimed", "free", "total"),
                claimed=COUNT,
                free=COUNT,
                total=COUNT,
                ready=COUNT,
                delayed=COUNT,
                oldest=_END,
                newest=_END,
            ),
            recent=list_of(list_of(COUNT)),
        ),
        "Purge": object_of(
            ("resource_types",), resource_types=list_of({"enum": ["messages", "subscriptions"]})
        ),
        "Share": object_of(
            paths=list_of({"enum": ["messages", "subscriptions", "claims"]}),
            methods=list_of({"enum": ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]}),
            expires={"type": ["string", "null"], "format": "date-time"},
        ),
        "SignedUrl": object_of(
            ("paths", "methods", "project", "expires", "signature"),
            paths=list_of(TEXT),
            methods=list_of(TEXT),
            project=TEXT,
            expires=TEXT,
            signature=TEXT,
        ),
        "History": object_of(
            ("messages", "links"),
            messages=list_of(
                object_of(
                    ("id", "at", "attempts"),
                    id=TEXT,
                    at=TEXT,
                    attempts=COUNT,
                    consumers=list_of(TEXT),
                )
            ),
            links=LINKS,
        ),
        "Messages": object_of(
            ("messages",),
            messages={
                **list_of(
                    object_of(
                        ("body",),
                        body=ANY,
                        ttl=ttl,
                        delay=delay,
                        idempotency_key={"type": "string", "minLength": 1, "maxLength": 128},
                        headers={"type": "object", "additionalProperties": TEXT},
                        group={"type": "string", "minLength": 1, "maxLength": MAX_GROUP},
                        deliver_at=TEXT,
                    )
                ),
                "minItems": 1,
            },
        ),
        "Resources": object_of(("resources",), resources=list_of(TEXT), duplicates=list_of(TEXT)),
        "Edit": {
            "anyOf": [
                {
                    **object_of(body=ANY, ttl=ttl, delay=delay),
                    "additionalProperties": False,
                    "minProperties": 1,
                },
                {**object_of(("claim",), claim=object_of()), "additionalProperties": False},
            ]
        },
        "Settlements": {
            **object_of(
                delete=list_of(TEXT),
                release=list_of(
                    object_of(
                        ("id",),
                        id=TEXT,
                        delay={"type": "integer", "minimum": 0, "maximum": limits.max_claim_ttl},
                        failed={"type": "boolean"},
                        reason={"type": "string", "maxLength": MAX_REASON},
                        detail={"type": "string", "maxLength": MAX_DETAIL},
                    )
                ),
                extend=list_of(object_of(("id", "ttl"), id=TEXT, ttl=claim_ttl)),
                dead=list_of(
                    object_of(
                        ("id",),
                        id=TEXT,
                        reason={"type": "string", "maxLength": MAX_REASON},
                        detail={"type": "string", "maxLength": MAX_DETAIL},
                    )
                ),
            ),
            "additionalProperties": False,
        },
        "Settled": object_of(
            ("results",),
            results=list_of(
                object_of(("id", "status"), id=TEXT, status=COUNT, outcome=TEXT, description=TEXT)
            ),
        ),
        "Message": _MESSAGE,
        "MessageList": object_of(("messages",), messages=list_of(_MESSAGE), links=LINKS),
        "Popped": object_of(("messages",), messages=list_of(_POPPED)),
        "Ranges": object_of(("ranges",), ranges=list_of(object_of(marker=TEXT, until=TEXT))),
        "DataKeys": object_of(
            ("data_keys",),
            data_keys=list_of(
                object_of(
                    ("id", "created_at", "server_key", "current"),
                    id=TEXT,
                    created_at=TEXT,
                    server_key=TEXT,
                    current={"type": "boolean"},
                )
            ),
        ),
        "Key": _KEY_DOCUMENT,
        "MadeKey": _MADE_KEY,
        "Keys": object_of(("keys", "links"), keys=list_of(_KEY_DOCUMENT), links=LINKS),
        "NewKey": object_of(
            ("grants",),
            grants=list_of({"type": "string", "pattern": "^!?[a-z*]+:[a-zA-Z0-9_.*?-]{1,64}$"}),
            project={"type": ["string", "null"], "minLength": 1, "maxLength": MAX_PROJECT_ID},
            expires={"type": ["integer", "null"], "minimum": 1, "maximum": LONGEST_LIFE},
            description={"type": "string", "maxLength": MAX_DESCRIPTION},
        ),
        "KeyChange": {
            **object_of(("disabled",), disabled={"type": "boolean"}),
            "additionalProperties": False,
        },
        "Quota": object_of(
            ("project", "quotas", "usage"), project=TEXT, quotas=_QUOTAS, usage=_USAGE, own=_QUOTAS
        ),
        "Quotas": _QUOTAS,
        "KeyOverlap": object_of(
            overlap={"type": ["integer", "null"], "minimum": 0, "maximum": LONGEST_OVERLAP}
        ),
        "Claim": object_of(ttl=claim_ttl, grace=claim_grace),
        "Claimed": object_of(("messages",), messages=list_of(_MESSAGE)),
        "ClaimShown": object_of(
            ("age", "ttl", "href", "messages"),
            age=COUNT,
            ttl=COUNT,
            href=TEXT,
            messages=list_of(_MESSAGE),
        ),
    }


def _parameters(limits: Limits) -> dict[str, Schema]:
    """The schemas of parameters and headers."""
    return {
        "Text": TEXT,
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
        "StreamSeconds": {"type": "integer", "minimum": 0, "maximum": LONGEST},
        "StreamStart": {"enum": ["first", "now"]},
        "Wait": {"type": "integer", "minimum": 0, "maximum": limits.max_wait},
        "KeyLimit": _whole(MOST_LISTED),
        "RangeCount": _whole(limits.max_ranges),
    }


def _whole(most: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most}
