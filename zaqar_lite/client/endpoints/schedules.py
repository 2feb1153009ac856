"""Schedules of the server."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from zaqar_lite.client import encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import with_query
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.wire import Call, Page, Request, Response

_PATH = "/v2/schedules"


def put(name: str, plan: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Make or replace a schedule."""
    given = {key: value for key, value in plan.items() if value is not None or key == "body"}
    return Call(Request("PUT", _path(name), JSON_TYPE, _encode(given)), encoding.document)


def patch(name: str, changes: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Change some fields of a schedule."""
    return Call(Request("PATCH", _path(name), JSON_TYPE, _encode(changes)), encoding.document)


def get(name: str) -> Call[dict[str, Any]]:
    """Show a schedule."""
    return Call(Request("GET", _path(name), {}), encoding.document)


def next_instants(name: str) -> Call[Sequence[dt.datetime]]:
    """Tell when a schedule fires next."""

    def read(response: Response) -> Sequence[dt.datetime]:
        shown = encoding.document(response)["next"]
        return [instant for text in shown if (instant := encoding.instant(text)) is not None]

    return Call(Request("GET", _path(name), {}), read)


def delete(name: str) -> Call[None]:
    """Delete a schedule."""
    return Call(Request("DELETE", _path(name), {}), nothing)


def fire(name: str) -> Call[str]:
    """Post a schedule's message now."""

    def read(response: Response) -> str:
        return str(encoding.document(response)["message_id"])

    # Sent twice it might post two messages.
    return Call(Request("POST", _path(name) + "/fire", {}), read, resend=False)


def list_page(*, marker: str | None = None) -> Call[Page[Mapping[str, Any]]]:
    """List schedules, after `marker`."""
    path = with_query(_PATH, marker=marker)
    return Call(Request("GET", path, {}), page_of("schedules", _as_it_is))


def _as_it_is(schedule: Mapping[str, Any]) -> Mapping[str, Any]:
    return schedule


def _path(name: str) -> str:
    if not name or name in {".", ".."}:
        message = f"{name!r} is not the name of a schedule"
        raise ValueError(message)
    return f"{_PATH}/{quote(name, safe='')}"


def _encode(fields: Mapping[str, Any]) -> bytes:
    return dumps({key: encoding.plain(value) for key, value in fields.items()})
