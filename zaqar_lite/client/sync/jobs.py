# Generated from asynchronous/jobs.py by tests/generate_sync.py; change it there.
"""Jobs: the sync client's methods."""

from typing import Any

from zaqar_lite.client.endpoints import jobs
from zaqar_lite.client.job import Job
from zaqar_lite.client.sync.calls import SyncCalls


class SyncJobs(SyncCalls):
    """Have the server act on many messages."""

    def start_redrive(self, queue: str, **order: Any) -> Job:  # noqa: ANN401 - any JSON
        """Have the server put letters back; it goes on when this program ends.

        Args:
            queue: the dead-letter queue.
            order: what the API takes: `ids` or `filter` (a dict, `{}` means all), `to`, `limit`,
                `max_per_second`, `dry_run`, `reset`, `delay`, `ttl`, `force`.
        """
        return self.call(jobs.begin(queue, "redrive", order))

    def act_on_delayed(self, queue: str, act: str, **order: Any) -> Job:  # noqa: ANN401
        """Have the server `cancel`, `move` or `fire` delayed messages.

        Args:
            queue: its name.
            act: what to do.
            order: `ids` or `filter`, and for a move `to` (an instant) or `by` (seconds), and
                `if_due` (an instant) to leave alone what is not due then.
        """
        return self.call(jobs.begin(queue, act, order))

    def get_job(self, path: str) -> Job:
        """Return how far a job is; `path` is `Job.path`."""
        return self.call(jobs.show(path))

    def cancel_job(self, path: str) -> None:
        """Let a job do nothing more; what is done stays."""
        self.call(jobs.cancel(path))
