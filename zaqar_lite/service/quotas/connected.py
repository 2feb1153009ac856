"""Count connections by project: each belongs to the project that it served last."""

from collections.abc import Callable
from typing import Protocol

from zaqar_lite.domain.errors import QuotaReached
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.seats import Seats


class Link(Protocol):
    """A client's connection."""

    project: str
    """The project that it was counted for, or empty."""
    lost: bool
    """Whether it has ended."""
    on_lost: Callable[[], None]
    """Called when it ends."""


class Connected:
    """Count the connections of projects, and refuse those beyond a quota of all processes."""

    def __init__(self, quotas: Quotas, seats: Seats) -> None:
        self._quotas = quotas
        self._seats = seats

    @property
    def is_on(self) -> bool:
        """Whether any project has such a quota."""
        return self._quotas.has_connections

    async def total_of(self, project: str) -> int:
        """Count the connections of a project, in all processes that share the store.

        Raises:
            Unavailable: that can't be read.
        """
        return await self._seats.total_of(project)

    async def serve(self, link: Link, project: str) -> None:
        """Serve a request of a project on a connection.

        Raises:
            QuotaReached: the project has as many other connections as its quota allows.
        """
        if link.project == project:
            return
        quota = self._quotas.of(project).connections
        if not await self._seats.take(project, quota):
            raise QuotaReached(
                f"The project's quota is {quota} connections: close some, or ask the "
                "operator of this server for more."
            )
        self._leave(link)
        if link.lost:  # else it would be counted for ever
            self._seats.leave(project)
            return
        link.project = project
        link.on_lost = lambda: self._leave(link)

    def _leave(self, link: Link) -> None:
        if link.project:
            self._seats.leave(link.project)
        link.project = ""
