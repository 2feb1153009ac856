"""Redrive by a job of the server, which moves the messages and keeps their ids."""

import contextlib
import time
from typing import Any

from zaqar_lite.client import Client, NotFound, Refused
from zaqar_lite.client.models import Job

_POLL = 0.2  # seconds
_NO_SUCH_ROUTE = {404, 405, 501}


def redrive(client: Client, queue: str, order: dict[str, Any]) -> Job | None:
    """Redrive by a job and wait for its end; None if the server has no such jobs.

    If the wait is interrupted, the job is cancelled: moved messages stay moved, others stay.

    Raises:
        Conflict: a redrive of this queue is under way.
    """
    try:
        job = client.start_redrive(queue, **order)
    except Refused as error:
        if error.status in _NO_SUCH_ROUTE:
            return None
        raise
    try:
        while not job.is_over:
            time.sleep(_POLL)
            job = client.get_job(job.path)
    except BaseException:
        with contextlib.suppress(NotFound):  # over already
            client.cancel_job(job.path)
        raise
    return job
