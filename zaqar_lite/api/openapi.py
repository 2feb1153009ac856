"""The OpenAPI document: FastAPI declares it from the table of routes, and the schemas stand here.

Import this only where the document is asked for: FastAPI takes a quarter of a second to import and
to declare the routes, which every start of a server would wait for.
"""

import re
import sys
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Response
from msgspec.json import schema_components
from orjson import dumps

from zaqar_lite.api.request import VARIABLE, Dialect, Route
from zaqar_lite.api.routes import RouteTree
from zaqar_lite.api.v2.claims import OneSettlement
from zaqar_lite.api.v2.queues import PATCH_TYPE
from zaqar_lite.domain.attempts import Ended
from zaqar_lite.domain.groups import MAX_GROUP
from zaqar_lite.domain.limits import MAX_IDEMPOTENCY_KEY, MAX_PROJECT_ID, Limits
from zaqar_lite.domain.quotas import Quota
from zaqar_lite.domain.subscriptions import MAX_SUBSCRIBER, MIN_TTL
from zaqar_lite.service.event_streams import LONGEST
from zaqar_lite.service.identity.keys import MOST_LISTED

Schema = dict[str, Any]
_PROPERTY = re.compile(r"(?P<name>\w+)(?P<needed>!?)(?::(?P<kind>\w+))?(?P<null>\??)")
_CLOSED: Schema = {"additionalProperties": False}

_UUID = "^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"
_PLACE = "#/components/schemas/{name}"
_OFF: Schema = {"type": "boolean", "const": False}


def reference(name: str) -> Schema:
    """Point to a schema of the document by its name."""
    return {"$ref": _PLACE.format(name=name)}


def _text(most: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": most}


def _whole(most: int, least: int = 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _schemas_of(*forms: type, prefix: str = "") -> dict[str, Schema]:
    """The schemas of forms by name; what may be null has two types, where anyOf has two schemas.

    Makers of clients trip over an anyOf that has null in it.
    """

    def plain(part: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(part, list):
            return [plain(one) for one in part]
        if not isinstance(part, dict):
            return part
        if isinstance(place := part.get("$ref"), str):
            return {**part, **reference(_name_of(place.rpartition("/")[2], prefix))}
        first, *others = part.get("anyOf", [{}])
        if others != [{"type": "null"}]:
            return {name: plain(one) for name, one in part.items()}
        rest = {name: one for name, one in part.items() if name != "anyOf"}
        return {**rest, **(_null(plain(first)) if "type" in first else first)}

    found: dict[str, Schema] = plain(schema_components(forms, ref_template=_PLACE)[1])
    return {(name := _name_of(form, prefix)): {**found[form], "title": name} for form in found}


def _name_of(form: str, prefix: str) -> str:
    """The name of a form's schema; the form may be private to its module."""
    return prefix + form.removeprefix("_")


def _enum(*values: object) -> Schema:
    return {"enum": list(values)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_NUMBER: Schema = {"type": "number", "minimum": 0}
_KINDS: dict[str, Schema] = {
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 0},
    "some": {"type": "integer", "minimum": 1},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "any": {},
    "texts": _list({"type": "string"}),
    "strings": {"type": "object", "additionalProperties": {"type": "string"}},
    "counts": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
}


def _object(written: str = "", /, **more: Schema) -> Schema:
    """An object; each property is written NAME, NAME! where it must be there, with :KIND and ?.

    Without a kind it is a text; with `?` it may be null. `more` are other kinds, by name.
    """
    kinds = {**_KINDS, **more}
    properties, needed = {}, []
    for one in written.split():
        found = _PROPERTY.fullmatch(one)
        assert found is not None, one  # noqa: S101 - all of them are written here
        name = found["name"]
        kind = kinds[found["kind"] or "text"]
        properties[name] = _null(kind) if found["null"] else kind
        if found["needed"]:
            needed.append(name)
    shape: Schema = {"type": "object", "properties": properties}
    return {**shape, "required": needed} if needed else shape


_LINKS = _list(_object("rel! href!"))
_DEAD_LETTER = _object(
    "source! moved_at! claim_count!:count last_claim_id:text? last_client_id:text? reason "
    "redriven:count"
)
_ATTEMPT = _object(
    "number!:count claimed_at! ended_at! outcome!:outcome delay!:count reason:text? detail:text? "
    "client_id:text?",
    outcome=_enum(*(outcome.value for outcome in Ended)),
)
_MESSAGE = _object(
    "id! href! ttl!:count age!:count body!:any checksum claim_count:count failure_count:count "
    "parked_until:text? attempts:attempts created delay_expires:text? headers:object? group:text? "
    "dead_letter:letter",
    attempts=_list(_ATTEMPT),
    letter=_null(_DEAD_LETTER),
)
_MESSAGES = _list(_MESSAGE)
_POPPED = _object("id! ttl!:count age!:count body!:any claim_id!:text? claim_count!:count checksum")
_KEY = "id! project!:text? grants!:texts created_at! created_by:text? expires_at!:text? "
_KEY += "disabled!:flag description"
_NAMED = _object("name! href! metadata:object")
_QUOTAS: Schema = {
    "type": "object",
    "properties": _schemas_of(Quota)["Quota"]["properties"],
    **_CLOSED,
}
_SUBSCRIPTION = _object(
    "id! source! subscriber! ttl!:count age!:count options!:object confirmed!:flag created "
    "disabled:object?"
)
_JOB = _object(
    "id! act! order:object state!:state created ended:text? total:count examined:count "
    "selected!:count done!:count refused!:counts targets:counts rate:number remaining:whole? "
    "sample:sample error",
    state=_enum("running", "completed", "cancelled", "failed"),
    sample=_list({"type": "object"}),
)
_SCHEDULE = _object(
    "name queue body:any ttl:some delay:count headers:strings group cron every:either at time_zone "
    "start end jitter:either missed:missed catch_up:either overlap:overlap paused:flag",
    either={"type": ["integer", "string"]},
    missed=_enum("skip", "one", "all"),
    overlap=_enum("allow", "skip"),
)
_FLAVOR = _object("href! name! pool_list!:texts capabilities:texts")


def _page(entries: str, entry: Schema, more: str = "") -> Schema:
    """A page of a list, with the link to the next one."""
    return _object(f"{entries}!:page links!:links {more}", page=_list(entry), links=_LINKS)


_END = _object("href! age!:count created!")
_POOL = _object("href! name! flavor!:text? uri! weight!:count options:object")
_SUBSCRIBED: dict[str, Schema] = {
    "subscriber": _text(MAX_SUBSCRIBER),
    "ttl": {"type": "integer", "minimum": MIN_TTL},
    "options": _object(
        "post_data post_headers:strings _retry_policy:object dead_letter_queue events_queue "
        "from subject"
    ),
}
_OF_ALL_SERVERS: dict[str, Schema] = {
    "ErrorDocument": _object("title! description"),
    "Metadata": {"type": "object", "additionalProperties": True},
    "MetadataPatch": _list(
        _object(
            "op!:op path!:path value:any",
            op=_enum("add", "remove", "replace"),
            path={"type": "string", "pattern": "^/metadata/"},
        )
    ),
    "Queues": _page("queues", _NAMED, "count:count"),
    "Topics": _page("topics", _NAMED),
    "TopicStats": _object(
        "messages!:counts", counts=_object("claimed:count free:count total!:count")
    ),
    "Depth": _object(
        "depth!:count ready!:count delayed!:count claimed!:count oldest_ready_seconds!:seconds",
        seconds=_NUMBER,
    ),
    "Stats": _object(
        "messages!:counts recent:recent rates:rates",
        counts=_object(
            "claimed!:count free!:count total!:count ready:count delayed:count oldest:end "
            "newest:end",
            end=_END,
        ),
        recent=_list(_list(_KINDS["count"])),
        rates=_object(
            "seconds!:number posted!:number claimed!:number deleted!:number", number=_NUMBER
        ),
    ),
    "SignedUrl": _object("paths!:texts methods!:texts project! expires! signature!"),
    "History": _page("messages", _object("id! at! attempts!:count consumers:texts")),
    "Resources": _object("resources!:texts duplicates:texts"),
    "Edit": {"anyOf": [reference("MessageChange"), reference("OneSettlement")]},
    "Settled": _object(
        "results!:results", results=_list(_object("id! status!:count outcome description"))
    ),
    "Message": _MESSAGE,
    "MessageList": _object("messages!:messages links:links", links=_LINKS, messages=_MESSAGES),
    "Popped": _object("messages!:messages", messages=_list(_POPPED)),
    "Ranges": _object("ranges!:ranges", ranges=_list(_object("marker until"))),
    "Claimed": _object("messages!:messages", messages=_MESSAGES),
    "ClaimShown": _object("age!:count ttl!:count href! messages!:messages", messages=_MESSAGES),
    "Subscription": _object("subscriber!:subscriber ttl:ttl options:options", **_SUBSCRIBED),
    "SubscriptionChange": _object(
        "subscriber:subscriber ttl:ttl options:options disabled:off", off=_OFF, **_SUBSCRIBED
    ),
    "Subscribed": _object("subscription_id! secret"),
    "SubscriptionShown": _SUBSCRIPTION,
    "Subscriptions": _page("subscriptions", _SUBSCRIPTION),
    "Deliveries": _page("deliveries", {"type": "object"}),
    "Pinged": _object("outcome! status:whole? milliseconds!:count answer error"),
    "Replayed": _object("replayed!:count marker!:text?"),
    "SubscriptionSecret": _object("secret!"),
    "Confirmation": _object("confirmed!:flag token"),
    "Schedule": _SCHEDULE,
    "Schedules": _page("schedules", _SCHEDULE),
    "Fired": _object("message_id!"),
    "JobShown": _JOB,
    "Jobs": _object("jobs!:jobs", jobs=_list(_JOB)),
    "DataKeys": _object(
        "data_keys!:keys", keys=_list(_object("id! created_at! server_key! current!:flag"))
    ),
    "Key": _object(_KEY),
    "MadeKey": _object(_KEY + " key aws_secret_access_key"),
    "Keys": _page("keys", _object(_KEY)),
    "Quota": _object(
        "project! quotas!:quotas usage!:usage own:quotas",
        quotas=_QUOTAS,
        usage={"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
    ),
    "Quotas": _QUOTAS,
    "Pool": _POOL,
    "Pools": _page("pools", _POOL),
    "Drain": _object(
        "pool! state!:state started_at! ended_at:text? queues_left!:count "
        "messages_moved!:count problem:text?",
        state=_enum("running", "completed"),
    ),
    "Flavor": _FLAVOR,
    "Flavors": _page("flavors", _FLAVOR),
    # Of parameters and headers; an id is not of the format uuid: clients would send no text.
    "Text": _KINDS["text"],
    "Flag": _KINDS["flag"],
    "ListLimit": _KINDS["some"],
    "IdempotencyKey": {"type": "string", "pattern": "^[ -~]{1,128}$"},
    "ClientId": {"type": "string", "pattern": _UUID},
    "QueueName": {
        "type": "string",
        "pattern": "^[a-zA-Z0-9_.-]{1,64}$",
        "not": _enum(".", ".."),
    },
    "DeliveryState": _enum("last", "failed"),
    "HistoryState": _enum("done", "failed"),
    "KeyLimit": _whole(MOST_LISTED),
    "StreamSeconds": _whole(LONGEST, 0),
    "StreamStart": _enum("first", "now"),
    **_schemas_of(OneSettlement),
}
"""The schemas that no setting changes, and that are no forms."""


def schemas(routes: Iterable[Route], limits: Limits) -> dict[str, Schema]:
    """All schemas by name, with the limits of this server.

    A form is its own schema: a route names its class, which its action's module knows.
    """
    ttl, delay = _whole(limits.max_message_ttl, 60), _whole(limits.max_message_delay, 0)
    draft = _object(
        "body!:any ttl:ttl delay:delay idempotency_key:key headers:strings group:group deliver_at",
        ttl=ttl,
        delay=delay,
        key=_text(MAX_IDEMPOTENCY_KEY),
        group=_text(MAX_GROUP),
    )
    edit = _object("body:any ttl:ttl delay:delay", ttl=ttl, delay=delay)
    written = {
        **_OF_ALL_SERVERS,
        "Messages": _object("messages!:drafts", drafts={**_list(draft), "minItems": 1}),
        "MessageChange": {**edit, **_CLOSED, "minProperties": 1},
        "Claim": _object(
            "ttl:ttl grace:grace",
            ttl=_null(_whole(limits.max_claim_ttl, 60)),
            grace=_null(_whole(limits.max_claim_grace, 60)),
        ),
        "PageLimit": _whole(limits.max_messages_per_page),
        "SubscriptionLimit": _whole(limits.max_subscriptions_per_page),
        "QueueLimit": _whole(limits.max_queues_per_page),
        "MessageLimit": _whole(limits.page(large=True)),
        "TakeLimit": _whole(limits.claim(large=True)),
        "Delay": _whole(limits.max_claim_ttl, 0),
        "Wait": _whole(limits.max_wait, 0),
        "RangeCount": _whole(limits.max_ranges),
    }
    forms = dict.fromkeys(
        vars(sys.modules[one.action.__module__])[one.body]
        for one in routes
        if one.body is not None and one.body not in written
    )
    return {**written, **_schemas_of(*forms)}


_MEANINGS = {
    200: "Done",
    201: "Created",
    202: "The job has begun; Location says where to look at it",
    204: "Done, or nothing there",
    300: "The versions there are",
    400: "The request is wrong; the description says what and where",
    401: "Nobody knows who is asking; WWW-Authenticate says what a credential is",
    403: "A claim that was not given holds the message, who asks may not do this, or a quota is "
    "reached",
    404: "It does not exist",
    405: "The path does not have this method",
    406: "The Accept header excludes application/json",
    409: "It exists in a state that excludes the request",
    412: "The message is due at another instant than If-Match says",
    413: "The body is larger than this route takes",
    415: "The Content-Type is not that of a metadata patch",
    429: "Too many requests came, wait, or failed to log in; try again after Retry-After seconds",
    431: "A header is too large",
    503: "The store cannot serve now; try again after Retry-After seconds",
}
_CHECKED = (400, 404, 406, 431)
_IDENTIFIED = (401, 403, 429)


def write_document(
    tree: RouteTree, limits: Limits, dialect: Dialect | None, *, version: str, authenticates: bool
) -> bytes:
    """Write the OpenAPI document; FastAPI makes its frame from the routes."""
    app = FastAPI(title="Zaqar Lite", version=version)
    for route in tree.routes:
        app.add_api_route(
            route.template,
            _declared,
            methods=[route.method],
            operation_id=route.name,
            summary=route.summary,
            status_code=route.statuses[0],
            response_class=Response,
            openapi_extra=_operation(route, authenticates),
        )
    document = app.openapi()
    document["components"] = {"schemas": schemas(tree.routes, limits)}
    if authenticates:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
        }
    if dialect is not None:
        _add_dialect(document, dialect, authenticates=authenticates)
    return dumps(document)


async def _declared() -> None:
    """Stand for a route in the document; `Application` answers it."""


def _add_dialect(document: Schema, dialect: Dialect, *, authenticates: bool) -> None:
    """Show the operations of a dialect, which have one path, as one operation.

    Paths alone tell operations apart in an OpenAPI document, and here a header does.
    """
    prefix, components = dialect.name.capitalize(), document["components"]
    forms = dialect.forms.items()
    documents = {said: reference(_name_of(form.__name__, prefix)) for said, form in forms}
    own = {
        "Operation": {"type": "string", **_enum(*documents)},
        "Document": {"anyOf": list({str(one): one for one in documents.values()}.values())},
        "Answer": {"type": "object"},
        "Error": _object("__type! message!"),
    }
    components["schemas"] |= _schemas_of(*dialect.forms.values(), prefix=prefix)
    components["schemas"] |= {prefix + name: schema for name, schema in own.items()}
    if authenticates:
        signed = {"type": "apiKey", "in": "header", "name": "Authorization"}
        components["securitySchemes"][f"{dialect.name}_signature"] = signed

    def content(name: str) -> Schema:
        return {"content": {dialect.media_type: {"schema": reference(prefix + name)}}}

    for path, name in (("/", dialect.name), ("/{account}/{queue}", f"{dialect.name}_at_queue")):
        parameters = [("header", dialect.header, f"{prefix}Operation")]
        parameters += [("path", variable, "Text") for variable in VARIABLE.findall(path)]
        document["paths"].setdefault(path, {})["post"] = {
            "operationId": name,
            "summary": f"Do what {dialect.header} names.",
            "parameters": [
                {"name": one, "in": place, "required": True, "schema": reference(schema)}
                for place, one, schema in parameters
            ],
            "requestBody": content("Document"),
            "x-documents": documents,
            "responses": {
                str(status): {
                    "description": _MEANINGS[status],
                    **content("Answer" if status == 200 else "Error"),
                }
                for status in (200, 400, 403, 404, 413, 503)
            },
            **({"security": [{f"{dialect.name}_signature": []}]} if authenticates else {}),
        }


_OF_EACH_CLIENT: list[Schema] = [
    {
        "name": "Client-ID",
        "in": "header",
        "required": True,
        "description": "A UUID that names the client.",
        "schema": reference("ClientId"),
    },
    {
        "name": "X-Project-ID",
        "in": "header",
        "required": True,
        "description": "The project (tenant).",
        "schema": _text(MAX_PROJECT_ID),
    },
]


def _operation(route: Route, authenticates: bool) -> Schema:
    """What a route takes and answers."""
    parameters: list[Schema] = []
    for name in VARIABLE.findall(route.template):
        schema = "QueueName" if name in ("queue_name", "topic_name") else "Text"
        parameters.append(
            {"name": name, "in": "path", "required": True, "schema": reference(schema)}
        )
    for one in route.parameters:
        where = {"name": one.name, "in": one.place, "description": one.description}
        parameters.append({**where, "schema": reference(one.schema)})
    if not route.public and not route.plain:
        parameters += _OF_EACH_CLIENT
    found: Schema = {"parameters": parameters, "responses": _responses(route, authenticates)}
    if route.body is not None:
        media_type = PATCH_TYPE.decode() if route.body == "MetadataPatch" else "application/json"
        found["requestBody"] = {"content": {media_type: {"schema": reference(route.body)}}}
    if authenticates and not route.public:
        found["security"] = [{"bearer": []}, {"token": []}]
    if route.access.rule is not None:
        found["x-policy-rule"] = route.access.rule
    return found


def _responses(route: Route, authenticates: bool) -> Schema:
    statuses = set(route.statuses)
    if not route.public:
        statuses |= {*_CHECKED, *(_IDENTIFIED if authenticates else ())}
    responses: Schema = {}
    for status in sorted(statuses):
        response: Schema = {"description": _MEANINGS[status]}
        schema = None
        if status in (200, 201, 202) and route.answer:
            schema = route.answer
        elif status >= 400 and route.name not in ("ping", "readyz", "readyz_head"):
            schema = "ErrorDocument"
        if status == 200 and route.streams:
            response["content"] = {"text/event-stream": {}}
        elif schema:
            response["content"] = {"application/json": {"schema": reference(schema)}}
        responses[str(status)] = response
    return responses
