"""Jobs and schedules of the server."""

import datetime as dt
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from zaqar_lite.client import encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import queue_path, with_query
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.job import Job
from zaqar_lite.client.wire import Call, Page, Request, Response

_SCHEDULES = "/v2/schedules"


def begin(queue: str, act: str, order: Mapping[str, Any]) -> Call[Job]:
    """Begin a job; `act` is redrive, or what is done to delayed messages."""
    parts = ("redrives",) if act == "redrive" else ("delayed", act)
    given = {name: _plain(value) for name, value in order.items() if value is not None}

    def read(response: Response) -> Job:
        return _job(response, response.headers.get("location", ""))

    # Sent twice it would begin two, of which the second is a conflict.
    return Call(
        Request("POST", queue_path(queue, *parts), JSON_TYPE, dumps(given)), read, resend=False
    )


def show(path: str) -> Call[Job]:
    """Show a job."""
    return Call(Request("GET", path, {}), lambda response: _job(response, path))


def cancel(path: str) -> Call[None]:
    """Cancel a job."""
    return Call(Request("DELETE", path, {}), nothing)


def put_schedule(name: str, plan: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Make or replace a schedule."""
    return Call(Request("PUT", _path(name), JSON_TYPE, dumps(_given(plan))), encoding.document)


def change_schedule(name: str, changes: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Change some of a schedule."""
    body = dumps({key: _plain(value) for key, value in changes.items()})
    return Call(Request("PATCH", _path(name), JSON_TYPE, body), encoding.document)


def get_schedule(name: str) -> Call[dict[str, Any]]:
    """Show a schedule."""
    return Call(Request("GET", _path(name), {}), encoding.document)


def delete_schedule(name: str) -> Call[None]:
    """End a schedule."""
    return Call(Request("DELETE", _path(name), {}), nothing)


def fire_schedule(name: str) -> Call[str]:
    """Post a schedule's message now."""

    def read(response: Response) -> str:
        return str(encoding.document(response)["message_id"])

    return Call(Request("POST", _path(name) + "/fire", {}), read, resend=False)


def list_schedules(*, marker: str | None = None) -> Call[Page[Mapping[str, Any]]]:
    """List schedules, after `marker`."""
    path = with_query(_SCHEDULES, marker=marker)
    return Call(Request("GET", path, {}), page_of("schedules", _as_it_is))


def _as_it_is(schedule: Mapping[str, Any]) -> Mapping[str, Any]:
    return schedule


def _path(name: str) -> str:
    if not name or name in {".", ".."}:
        message = "the name of a schedule is empty"
        raise ValueError(message)
    return f"{_SCHEDULES}/{quote(name, safe='')}"


def _given(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in plan.items() if value is not None or key == "body"}


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON is anything
    """A value as JSON has it: instants are texts."""
    return value.isoformat() if isinstance(value, dt.datetime) else value


def _job(response: Response, path: str) -> Job:
    entry = encoding.document(response)
    return Job(
        path,
        entry["id"],
        entry["state"],
        entry["total"],
        entry["examined"],
        entry["selected"],
        entry["done"],
        entry["refused"],
        entry["rate"],
        entry["remaining"],
        tuple(entry.get("sample", ())),
        entry.get("error"),
        entry.get("targets", {}),
    )
