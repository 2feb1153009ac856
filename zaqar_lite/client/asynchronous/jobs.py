"""Jobs and schedules: the async client's methods."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import jobs
from zaqar_lite.client.job import Job


class AsyncJobs(AsyncCalls):
    """Have the server act on many messages, and post by the clock."""

    async def start_redrive(self, queue: str, **order: Any) -> Job:  # noqa: ANN401 - any JSON
        """Have the server put letters back; it goes on when this program ends.

        Args:
            queue: the dead-letter queue.
            order: what the API takes: `ids` or `filter` (a dict, `{}` means all), `to`, `limit`,
                `max_per_second`, `dry_run`, `reset`, `delay`, `ttl`, `force`.
        """
        return await self.call(jobs.begin(queue, "redrive", order))

    async def act_on_delayed(self, queue: str, act: str, **order: Any) -> Job:  # noqa: ANN401
        """Have the server `cancel`, `move` or `fire` delayed messages.

        Args:
            queue: its name.
            act: what to do.
            order: `ids` or `filter`, and for a move `to` (an instant) or `by` (seconds), and
                `if_due` (an instant) to leave alone what is not due then.
        """
        return await self.call(jobs.begin(queue, act, order))

    async def get_job(self, path: str) -> Job:
        """Return how far a job is; `path` is `Job.path`."""
        return await self.call(jobs.show(path))

    async def cancel_job(self, path: str) -> None:
        """Let a job do nothing more; what is done stays."""
        await self.call(jobs.cancel(path))

    async def put_schedule(
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
        return await self.call(jobs.put_schedule(name, {"queue": queue, "body": body, **plan}))

    async def get_schedule(self, name: str) -> dict[str, Any]:
        """Return a schedule as the API shows it."""
        return await self.call(jobs.get_schedule(name))

    def list_schedules(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the project's schedules by name, page by page."""
        return self._items(lambda marker: jobs.list_schedules(marker=marker))

    async def change_schedule(self, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        """Change what is given; None takes a field away."""
        return await self.call(jobs.change_schedule(name, changes))

    async def delete_schedule(self, name: str) -> None:
        """End a schedule; an absent one is no error."""
        await self.call(jobs.delete_schedule(name))

    async def fire_schedule(self, name: str) -> str:
        """Post a schedule's message now; return its id."""
        return await self.call(jobs.fire_schedule(name))
