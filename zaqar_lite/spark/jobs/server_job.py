"""Let the server itself redrive: a job of its own, which moves the messages and keeps their ids."""

import contextlib
import json
import time
from typing import Any

from zaqar_lite.client import Client, NotFound, Refused
from zaqar_lite.client.encoding import document
from zaqar_lite.client.endpoints.paths import queue_path
from zaqar_lite.client.wire import Call, Request

_POLL = 0.2  # seconds
_JSON = {"Content-Type": "application/json"}
_NO_SUCH_ROUTE = {404, 405, 501}


def redrive(client: Client, queue: str, order: dict[str, Any]) -> dict[str, Any] | None:
    """Redrive by a job and wait for its end; None where the server has no such jobs.

    Whatever ends the wait cancels the job: what it has moved stays moved, the rest stays.

    Raises:
        Conflict: a redrive of this queue is under way.
    """
    path = queue_path(queue, "redrives")
    given = {name: value for name, value in order.items() if value is not None}
    begin = Request("POST", path, _JSON, json.dumps(given).encode())
    try:
        # Sent once: where its answer is lost, a second one would find the first under way.
        job: dict[str, Any] = client.call(Call(begin, document, resend=False))
    except Refused as error:
        if error.status in _NO_SUCH_ROUTE:
            return None
        raise
    one = f"{path}/{job['id']}"
    try:
        while job["state"] == "running":
            time.sleep(_POLL)
            job = client.call(Call(Request("GET", one, {}), document))
    except BaseException:
        with contextlib.suppress(NotFound):  # over already
            client.call(Call(Request("DELETE", one, {}), lambda _: None))
        raise
    return job
