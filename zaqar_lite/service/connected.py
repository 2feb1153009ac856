"""Which project each connection is of: the one that it served last."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from zaqar_lite.domain.errors import QuotaReached
from zaqar_lite.service.quotas import Quotas


class Link(Protocol):
    """A client's connection."""

    project: str
    """The project that it was counted for, or empty."""
    lost: bool
    """Whether it has ended."""
    on_lost: Callable[[], None]
    """Called when it ends."""


class Connected:
    """Count the connections of projects, and refuse those beyond a quota.

    A quota is for all `workers` together: this process has its share.
    """

    def __init__(self, quotas: Quotas, *, workers: int = 1) -> None:
        self._quotas = quotas
        self._workers = workers
        self._count: Counter[str] = Counter()

    @property
    def is_on(self) -> bool:
        """Whether any project has such a quota."""
        return self._quotas.has_connections

    def count_of(self, project: str) -> int:
        """How many connections are of a project."""
        return self._count.get(project, 0)

    def serve(self, link: Link, project: str) -> None:
        """Serve a request of a project on a connection.

        Raises:
            QuotaReached: as many others as its quota allows are of the project.
        """
        if link.project == project or link.lost:  # or it would be counted for ever
            return
        quota = self._quotas.of(project).connections
        if quota is not None and self._count[project] >= -(-quota // self._workers):
            raise QuotaReached(
                f"The project's quota is {quota} connections: close some, or ask who runs this "
                "server for more."
            )
        self._leave(link)
        link.project = project
        link.on_lost = lambda: self._leave(link)
        self._count[project] += 1

    def _leave(self, link: Link) -> None:
        if link.project:
            self._count[link.project] -= 1
            if not self._count[link.project]:
                del self._count[link.project]
        link.project = ""
