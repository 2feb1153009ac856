# Generated from asynchronous/schedules.py by tests/generate_sync.py; change it there.
"""Schedules: what the sync client's attribute `schedules` can do."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.endpoints.resources import ask, list_page, path_of, tell
from zaqar_lite.client.sync.calls import SyncCalls


class SyncSchedules:
    """Have the server post messages by the clock.

    A schedule is a dict, as the API shows it.
    """

    def __init__(self, client: SyncCalls) -> None:
        self._client = client

    def put(
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
        given = {key: value for key, value in plan.items() if value is not None}
        wanted = {"queue": queue, "body": body, **given}
        return self._client.call(ask("PUT", _path(name), dict, wanted))

    def get(self, name: str) -> dict[str, Any]:
        """Return a schedule."""
        return self._client.call(ask("GET", _path(name), dict))

    def patch(self, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        """Change the given fields of a schedule, and return it; None removes a field."""
        return self._client.call(ask("PATCH", _path(name), dict, changes))

    def pause(self, name: str) -> dict[str, Any]:
        """Let a schedule wait: it does not fire until it is resumed."""
        return self.patch(name, paused=True)

    def resume(self, name: str) -> dict[str, Any]:
        """Let a paused schedule fire again, from its next instant on."""
        return self.patch(name, paused=False)

    def fire(self, name: str) -> str:
        """Post a schedule's message now, beside its instants; return the message's id."""
        path = _path(name, "fire")
        # Sent twice it might post two messages.
        return self._client.call(ask("POST", path, _message_id, resend=False))

    def next(self, name: str) -> Sequence[dt.datetime]:
        """Return the next five instants of a schedule; none while it is paused."""
        return self._client.call(ask("GET", _path(name), _next_instants))

    def delete(self, name: str) -> None:
        """Delete a schedule; its messages stay. An absent one is no error."""
        self._client.call(tell("DELETE", _path(name)))

    def list(self) -> Iterator[Mapping[str, Any]]:
        """Yield the project's schedules by name, page by page."""
        return self._client._items(
            lambda marker: list_page("/v2/schedules", "schedules", dict, marker=marker)
        )


class SyncScheduling(SyncCalls):
    """Give the client its attribute `schedules`."""

    @property
    def schedules(self) -> SyncSchedules:
        """The schedules of the project: `put`, `get`, `patch`, `delete`, `list`, `fire`, ..."""
        return SyncSchedules(self)


def _path(name: str, *rest: str) -> str:
    """Return the path of a schedule.

    Raises:
        ValueError: the name would be that of another path.
    """
    if name in {"", ".", ".."}:
        message = f"{name!r} is not the name of a schedule"
        raise ValueError(message)
    return path_of("schedules", name, *rest)


def _message_id(document: Any) -> str:  # noqa: ANN401 - JSON is anything
    return str(document["message_id"])


def _next_instants(schedule: Any) -> Sequence[dt.datetime]:  # noqa: ANN401 - JSON is anything
    return [at for text in schedule["next"] if (at := encoding.instant(text)) is not None]
