"""FastAPI: the OpenAPI document, declared from the table of routes.

Import this only where the document is asked for: FastAPI takes a quarter of a second to import and
to declare the routes, which every start of a server would wait for.
"""

import re

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from zaqar_lite.api.call import Route
from zaqar_lite.api.routes import OPENAPI_PATH, RouteTree
from zaqar_lite.api.schemas import Schema, reference, schemas
from zaqar_lite.api.v2.queues import PATCH_TYPE
from zaqar_lite.domain.limits import Limits

_VARIABLE = re.compile(r"{(\w+)}")
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


def build_framework(
    tree: RouteTree, limits: Limits, *, version: str, authenticates: bool
) -> FastAPI:
    """Make the FastAPI application that serves the OpenAPI document."""
    app = FastAPI(
        title="Zaqar Lite", version=version, openapi_url=OPENAPI_PATH, docs_url=None, redoc_url=None
    )
    app.add_exception_handler(405, _refuse_method)
    for route in tree.routes:
        app.add_api_route(
            route.template,
            _declared,
            methods=[route.method],
            name=route.name,
            operation_id=route.name,
            summary=route.summary,
            response_class=Response,
            responses={},
            openapi_extra=_documentation(route),
        )
    app.openapi = lambda: _openapi(app, tree, limits, authenticates)  # type: ignore[method-assign]
    return app


async def _refuse_method(_: Request, error: Exception) -> Response:
    """Answer another method than GET and HEAD in the form that all errors have."""
    headers = dict(getattr(error, "headers", None) or {})
    return Response(
        b'{"title":"405 Method Not Allowed"}', 405, headers, media_type="application/json"
    )


async def _declared() -> None:
    """Stand for a route in the document; `Application` answers it."""


def _openapi(app: FastAPI, tree: RouteTree, limits: Limits, authenticates: bool) -> Schema:
    """The OpenAPI document: FastAPI's frame, the table's content."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document["components"] = {"schemas": schemas(limits)}
        if authenticates:
            document["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
            }
        for route in tree.routes:
            operation = document["paths"][route.template][route.method.lower()]
            operation["responses"] = _responses(route, authenticates)
            if authenticates and not route.public:
                operation["security"] = [{"bearer": []}, {"token": []}]
            if route.access.rule is not None:
                operation["x-policy-rule"] = route.access.rule
        app.openapi_schema = document
    return app.openapi_schema


def _documentation(route: Route) -> Schema:
    parameters: list[Schema] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": reference("QueueName" if name in ("queue_name", "topic_name") else "Text"),
        }
        for name in _VARIABLE.findall(route.template)
    ]
    parameters += [
        {
            "name": parameter.name,
            "in": parameter.place,
            "description": parameter.description,
            "schema": reference(parameter.schema),
        }
        for parameter in route.parameters
    ]
    if not route.public and not route.plain:
        parameters += [
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
                "schema": {"type": "string", "minLength": 1, "maxLength": 256},
            },
        ]
    documented: Schema = {"parameters": parameters}
    if route.body is not None:
        media_type = PATCH_TYPE.decode() if route.body == "MetadataPatch" else "application/json"
        documented["requestBody"] = {"content": {media_type: {"schema": reference(route.body)}}}
    return documented


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
            schema = "Error"
        if status == 200 and route.streams:
            response["content"] = {"text/event-stream": {}}
        elif schema:
            response["content"] = {"application/json": {"schema": reference(schema)}}
        responses[str(status)] = response
    return responses
