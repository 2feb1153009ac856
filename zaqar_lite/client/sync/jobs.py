# Generated from asynchronous/jobs.py by tests/generate_sync.py; change it there.
"""Jobs and schedules: the sync client's methods."""

from collections.abc import Iterator, Mapping
from typing import Any

from zaqar_lite.client.endpoints import jobs
from zaqar_lite.client.job import Job
from zaqar_lite.client.sync.calls import SyncCalls


class SyncJobs(SyncCalls):
    """Have the server act on many messages, and post by the clock."""

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

    def put_schedule(
        self,
        name: str,
        queue: str,
        body: Any,  # noqa: ANN401 - any JSON
        **plan: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Make or replace a schedule, and return it as the API shows it.

        Args:
            name: its name.
            queue: where it posts to.
            body: of its messages.
            plan: one of `cron`, `every` and `at`; `time_zone`, `ttl`, `headers`, `group`, `start`,
                `end`, `jitter`, `missed`, `catch_up`, `overlap`, `paused`.
        """
        return self.call(jobs.put_schedule(name, {"queue": queue, "body": body, **plan}))

    def get_schedule(self, name: str) -> dict[str, Any]:
        """Return a schedule as the API shows it."""
        return self.call(jobs.get_schedule(name))

    def list_schedules(self) -> Iterator[Mapping[str, Any]]:
        """Yield the project's schedules by name, page by page."""
        return self._items(lambda marker: jobs.list_schedules(marker=marker))

    def change_schedule(self, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        """Change what is given; None takes a field away."""
        return self.call(jobs.change_schedule(name, changes))

    def delete_schedule(self, name: str) -> None:
        """End a schedule; an absent one is no error."""
        self.call(jobs.delete_schedule(name))

    def fire_schedule(self, name: str) -> str:
        """Post a schedule's message now; return its id."""
        return self.call(jobs.fire_schedule(name))
