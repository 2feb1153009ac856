"""Schedules: what the attribute `schedules` of a client can do."""

import datetime as dt
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from zaqar_lite.client.async_runner import AsyncPart
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints.requests import ask, path_of, tell
from zaqar_lite.client.steps import Pages, Steps, listing, method
from zaqar_lite.client.sync_runner import SyncPart


class Schedules:
    """Have the server post messages by the clock.

    A schedule is a dict, as the API shows it.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    @method
    def put(
        self,
        /,
        name: str,
        queue: str,
        body: Any,  # noqa: ANN401 - any JSON
        **plan: Any,  # noqa: ANN401
    ) -> Steps[dict[str, Any]]:
        """Make or replace a schedule, and return it.

        Args:
            name: its name.
            queue: the queue that it posts to.
            body: the body of its messages.
            plan: one of `cron`, `every` and `at`; `time_zone`, `ttl`, `delay`, `headers`, `group`,
                `start`, `end`, `jitter`, `missed`, `catch_up`, `overlap`, `paused`.
        """
        given = {key: value for key, value in plan.items() if value is not None}
        wanted = {"queue": queue, "body": body, **given}
        return self._client._exchange(ask("PUT", _path(name), dict, wanted))

    @method
    def get(self, name: str) -> Steps[dict[str, Any]]:
        """Return a schedule."""
        return self._client._exchange(ask("GET", _path(name), dict))

    @method
    def patch(self, /, name: str, **changes: Any) -> Steps[dict[str, Any]]:  # noqa: ANN401
        """Change the given fields of a schedule, and return it; None removes a field."""
        return self._client._exchange(ask("PATCH", _path(name), dict, changes))

    @method
    def pause(self, name: str) -> Steps[dict[str, Any]]:
        """Let a schedule wait: it does not fire until it is resumed."""
        return self._client._exchange(ask("PATCH", _path(name), dict, {"paused": True}))

    @method
    def resume(self, name: str) -> Steps[dict[str, Any]]:
        """Let a paused schedule fire again, from its next instant on."""
        return self._client._exchange(ask("PATCH", _path(name), dict, {"paused": False}))

    @method
    def fire(self, name: str) -> Steps[str]:
        """Post a schedule's message now, beside its instants; return the message's id."""
        path = _path(name, "fire")
        # Sent twice it might post two messages.
        return self._client._exchange(ask("POST", path, itemgetter("message_id"), resend=False))

    @method
    def next(self, name: str) -> Steps[Sequence[dt.datetime]]:
        """Return the next five instants of a schedule; none while it is paused."""

        def read(schedule: Mapping[str, Any]) -> Sequence[dt.datetime]:
            return [dt.datetime.fromisoformat(text) for text in schedule["next"]]

        return self._client._exchange(ask("GET", _path(name), read))

    @method
    def delete(self, name: str) -> Steps[None]:
        """Delete a schedule; its messages stay. An absent one is no error."""
        return self._client._exchange(tell("DELETE", _path(name)))

    @listing
    def list(self) -> Pages[Mapping[str, Any]]:
        """Yield the project's schedules by name, page by page."""
        return self._client._pages("/v2/schedules", "schedules", dict)


class AsyncSchedules(Schedules, AsyncPart):
    """The schedules of an async client."""


class SyncSchedules(Schedules, SyncPart):
    """The schedules of a sync client."""


def _path(name: str, *rest: str) -> str:
    return path_of("schedules", name, *rest)
