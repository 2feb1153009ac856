"""Schedules: what the async client's attribute `schedules` can do."""

import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import schedules


class AsyncSchedules:
    """Have the server post messages by the clock.

    A schedule is a dict, as the API shows it.
    """

    def __init__(self, client: AsyncCalls) -> None:
        self._client = client

    async def put(
        self,
        name: str,
        queue: str,
        body: Any,  # noqa: ANN401 - any JSON
        **plan: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Make or replace a schedule, and return it.

        Args:
            name: its name.
            queue: the queue that it posts to.
            body: the body of its messages.
            plan: one of `cron`, `every` and `at`; `time_zone`, `ttl`, `delay`, `headers`, `group`,
                `start`, `end`, `jitter`, `missed`, `catch_up`, `overlap`, `paused`.
        """
        fields = {"queue": queue, "body": body, **plan}
        return await self._client.call(schedules.put(name, fields))

    async def get(self, name: str) -> dict[str, Any]:
        """Return a schedule."""
        return await self._client.call(schedules.get(name))

    async def patch(self, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        """Change the given fields of a schedule, and return it; None removes a field."""
        return await self._client.call(schedules.patch(name, changes))

    async def pause(self, name: str) -> dict[str, Any]:
        """Let a schedule wait: it does not fire until it is resumed."""
        return await self.patch(name, paused=True)

    async def resume(self, name: str) -> dict[str, Any]:
        """Let a paused schedule fire again, from its next instant on."""
        return await self.patch(name, paused=False)

    async def fire(self, name: str) -> str:
        """Post a schedule's message now, beside its instants; return the message's id."""
        return await self._client.call(schedules.fire(name))

    async def next(self, name: str) -> Sequence[dt.datetime]:
        """Return the next five instants of a schedule; none while it is paused."""
        return await self._client.call(schedules.next_instants(name))

    async def delete(self, name: str) -> None:
        """Delete a schedule; its messages stay. An absent one is no error."""
        await self._client.call(schedules.delete(name))

    def list(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the project's schedules by name, page by page."""
        return self._client._items(lambda marker: schedules.list_page(marker=marker))


class AsyncScheduling(AsyncCalls):
    """Give the client its attribute `schedules`."""

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules of the project: `put`, `get`, `patch`, `delete`, `list`, `fire`, ..."""
        return AsyncSchedules(self)
