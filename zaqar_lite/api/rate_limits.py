"""Count requests against the rates of their projects, and connections against quotas."""

from zaqar_lite.api.request import Request, Response, Route, Write
from zaqar_lite.domain.identity import Verb
from zaqar_lite.service.quotas.concurrency_limits import ConnectionLimits
from zaqar_lite.service.quotas.rate_limits import MANAGE, READ, WRITE, RateLimits


class Meter:
    """Count requests against rates, and connections; a route without a verb has no rate."""

    def __init__(
        self, rates: RateLimits, connection_limits: ConnectionLimits, routes: tuple[Route, ...]
    ) -> None:
        self.rates = rates
        self.connection_limits = connection_limits
        kinds = ((route.name, _kind(route)) for route in routes)
        self._kinds = {name: kind for name, kind in kinds if kind is not None}

    async def admit(self, request: Request, route: Route) -> None:
        """Count a request by what it asks for, and its connection for its project.

        Raises:
            TooMany: its project is too fast.
            QuotaReached: its project has too many other connections.
        """
        if not request.project:
            return
        kind = self._kinds.get(route.name)
        if kind is not None and self.rates.is_on:
            self.rates.spend(request.project, kind, 0 if kind == READ else request.size)
        if request.link is not None and self.connection_limits.is_on:
            await self.connection_limits.serve(request.link, request.project)

    def answered(self, request: Request, route: Route, response: Response) -> None:
        """Count the bytes that a reader was answered."""
        if self._kinds.get(route.name) == READ and (size := len(response.body or response.text())):
            self.rates.charge(request.project, READ, size)

    def counted(self, write: Write, project: str) -> Write:
        """Write a stream of a project's, and count the bytes."""

        async def counting(part: bytes) -> None:
            self.rates.charge(project, READ, len(part))
            await write(part)

        return counting


def _kind(route: Route) -> int | None:
    """A route's kind. What only consumers may do in a route that others may use is reading too."""
    verb = route.access.verb
    if verb is None:
        return None
    if verb is Verb.SEND:
        return WRITE
    if verb in (Verb.READ, Verb.RECEIVE) or route.access.consuming:
        return READ
    return MANAGE
