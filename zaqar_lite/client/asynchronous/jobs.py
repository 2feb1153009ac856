"""Jobs: the async client's methods."""

from typing import Any

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import jobs
from zaqar_lite.client.job import Job


class AsyncJobs(AsyncCalls):
    """Have the server act on many messages."""

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
