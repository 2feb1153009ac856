"""Jobs, by which the server acts on many messages."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call, Request, Response
from zaqar_lite.client.endpoints.requests import JSON_TYPE, ask, queue_path, tell
from zaqar_lite.client.errors import ZaqarError
from zaqar_lite.client.models import Job
from zaqar_lite.client.serialization import document, dumps, reader
from zaqar_lite.client.steps import Sleep, Steps, method

_JOB = reader(Job)
LOOK_EVERY = 0.2
"""Seconds between two looks at a job."""
NO_SUCH_ROUTE = frozenset({404, 405, 501})
"""How a server answers that has no jobs."""


class Jobs(BaseClient):
    """Have the server act on many messages."""

    @method
    def start_redrive(self, /, queue: str, **order: Any) -> Steps[Job]:  # noqa: ANN401 - any JSON
        """Have the server put dead letters back; the job goes on when this program ends.

        Args:
            queue: the dead-letter queue.
            order: what the API takes: `ids` or `filter` (a dict, `{}` means all), `to`, `limit`,
                `max_per_second`, `dry_run`, `reset`, `delay`, `ttl`, `force`.
        """
        return self._exchange(begin(queue_path(queue, "redrives"), order))

    @method
    def act_on_delayed(self, /, queue: str, act: str, **order: Any) -> Steps[Job]:  # noqa: ANN401
        """Have the server `cancel`, `move` or `fire` delayed messages.

        Args:
            queue: the name of the queue.
            act: what to do.
            order: `ids` or `filter`; for a move also `to` (an instant) or `by` (seconds); and
                `if_due` (an instant), to act only on messages that are due then.
        """
        return self._exchange(begin(queue_path(queue, "delayed", act), order))

    @method
    def get_job(self, path: str) -> Steps[Job]:
        """Return how far a job is; `path` is `Job.path`."""
        return self._exchange(look(path))

    @method
    def wait_for_job(self, job: Job) -> Steps[Job]:
        """Wait until a job is over, and return it; an error or a cancellation meanwhile cancels it.

        What it has done by then stays done.
        """
        return finish(self, job)

    @method
    def cancel_job(self, path: str) -> Steps[None]:
        """Cancel a job; what it has done already stays done."""
        return self._exchange(tell("DELETE", path))


def begin(path: str, order: Mapping[str, Any]) -> Call[Job]:
    """Begin a job."""

    def read(response: Response) -> Job:
        return _JOB({**document(response), "path": response.headers.get("location", "")})

    given = {name: value for name, value in order.items() if value is not None}
    # Sent twice it would begin two, of which the second is a conflict.
    return Call(Request("POST", path, JSON_TYPE, dumps(given)), read, resend=False)


def look(path: str) -> Call[Job]:
    """Ask how far a job is."""
    return ask("GET", path, lambda found: _JOB({**found, "path": path}))


def finish(client: BaseClient, job: Job) -> Steps[Job]:
    """Look at a job until it is over; cancel it where that is interrupted."""
    try:
        while not job.is_over:
            yield Sleep(LOOK_EVERY)
            job = yield from client._exchange(look(job.path))
    except BaseException:
        with suppress(ZaqarError):  # this error must not hide the other
            yield from client._exchange(tell("DELETE", job.path))
        raise
    return job
