"""Jobs of the server."""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.paths import queue_path
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.job import Job
from zaqar_lite.client.wire import Call, Request, Response


def begin(queue: str, act: str, order: Mapping[str, Any]) -> Call[Job]:
    """Begin a job; `act` is redrive, or what is done to delayed messages."""
    parts = ("redrives",) if act == "redrive" else ("delayed", act)
    given = {name: encoding.plain(value) for name, value in order.items() if value is not None}

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
