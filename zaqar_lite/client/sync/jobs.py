# Generated from asynchronous/jobs.py by tests/generate_sync.py; change it there.
"""Jobs: the sync client's methods."""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.paths import queue_path
from zaqar_lite.client.endpoints.resources import JSON_TYPE, ask, tell
from zaqar_lite.client.job import Job
from zaqar_lite.client.records import reader
from zaqar_lite.client.sync.calls import SyncCalls
from zaqar_lite.client.wire import Call, Request, Response

_JOB = reader(Job)


class SyncJobs(SyncCalls):
    """Have the server act on many messages."""

    def start_redrive(self, queue: str, **order: Any) -> Job:  # noqa: ANN401 - any JSON
        """Have the server put dead letters back; the job goes on when this program ends.

        Args:
            queue: the dead-letter queue.
            order: what the API takes: `ids` or `filter` (a dict, `{}` means all), `to`, `limit`,
                `max_per_second`, `dry_run`, `reset`, `delay`, `ttl`, `force`.
        """
        return self.call(_begin(queue_path(queue, "redrives"), order))

    def act_on_delayed(self, queue: str, act: str, **order: Any) -> Job:  # noqa: ANN401
        """Have the server `cancel`, `move` or `fire` delayed messages.

        Args:
            queue: the name of the queue.
            act: what to do.
            order: `ids` or `filter`; for a move also `to` (an instant) or `by` (seconds); and
                `if_due` (an instant), to act only on messages that are due then.
        """
        return self.call(_begin(queue_path(queue, "delayed", act), order))

    def get_job(self, path: str) -> Job:
        """Return how far a job is; `path` is `Job.path`."""
        return self.call(ask("GET", path, lambda found: _JOB({**found, "path": path})))

    def cancel_job(self, path: str) -> None:
        """Cancel a job; what it has done already stays done."""
        self.call(tell("DELETE", path))


def _begin(path: str, order: Mapping[str, Any]) -> Call[Job]:
    def read(response: Response) -> Job:
        return _JOB({**encoding.document(response), "path": response.headers.get("location", "")})

    given = {name: value for name, value in order.items() if value is not None}
    # Sent twice it would begin two, of which the second is a conflict.
    return Call(Request("POST", path, JSON_TYPE, dumps(given)), read, resend=False)
