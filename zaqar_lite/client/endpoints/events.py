"""A queue's stream of events."""

import json
from typing import Any

from zaqar_lite.client.arguments import takes
from zaqar_lite.client.calls import Call, Request, Response, bad_answer
from zaqar_lite.client.endpoints.messages import read_message
from zaqar_lite.client.endpoints.requests import queue_path, with_query
from zaqar_lite.client.models import Message


def events(
    queue: str,
    *,
    marker: str | None = None,
    start: str | None = None,
    echo: bool = True,
    include_delayed: bool = False,
    details: bool = False,
) -> Call[Any]:
    """Open a stream of events; the result is the transport's stream of bytes."""
    takes("marker", marker, str, "a marker, or the id of a message")
    path = with_query(
        queue_path(queue, "events"),
        marker=marker,
        start=start,
        echo=echo,
        include_delayed=include_delayed or None,
        details=details or None,
    )

    def read(response: Response) -> Any:  # noqa: ANN401 - as each transport has it
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise bad_answer(response, "a stream of events was expected")
        return response.stream

    request = Request("GET", path, {"Accept": "text/event-stream"}, streams=True)
    return Call(request, read)


def read_event(queue: str, data: bytes) -> Message:
    """Read the message of an event."""
    return read_message(queue, json.loads(data))
