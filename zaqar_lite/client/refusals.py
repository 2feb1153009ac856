"""From an answer that refuses to the error that it stands for."""

import json
from collections.abc import Mapping
from typing import Any

from zaqar_lite.client.errors import (
    BY_STATUS,
    BadRequest,
    KeyReused,
    Overloaded,
    ServerFault,
    StatusError,
)
from zaqar_lite.client.wire import Response


def from_response(
    response: Response, meanings: Mapping[int, type[StatusError]] | None = None
) -> StatusError:
    """Make the error that an answer stands for.

    `meanings` says what a status means to the endpoint that was called, where that is more than
    the status says by itself.
    """
    status = response.status
    known = {**BY_STATUS, **(meanings or {})}
    kind = known.get(status, BadRequest if 400 <= status < 500 else ServerFault)
    title, description, more = _explanation(response)
    title, description = kind.SAYS or (title, description)
    error = kind(
        title, description, status=status, request_id=response.headers.get("x-openstack-request-id")
    )
    if isinstance(error, Overloaded):
        error.retry_after = response.retry_after()
    elif isinstance(error, KeyReused):
        error.index = more.get("index")
    return error


def _explanation(response: Response) -> tuple[str, str | None, Mapping[str, Any]]:
    """Return title, description and all fields of an error's body, whoever wrote it."""
    try:
        document = json.loads(response.body)
        if isinstance(document.get("error"), dict):  # Keystone's form, of 401
            document = document["error"]
            document["description"] = document.get("message")
        title, description = document["title"], document.get("description")
    except (ValueError, KeyError, TypeError, AttributeError):
        # Not the server's words: a proxy's page, or nothing at all. Quote its beginning.
        text = " ".join(response.body[:200].decode("utf-8", "replace").split())
        return f"HTTP {response.status}", text or None, {}
    return str(title), None if description is None else str(description), document
