"""Which of a project's rates a request counts against, and counting it."""

from zaqar_lite.api.call import Call, Route, Write
from zaqar_lite.domain.identity import Verb
from zaqar_lite.service.quotas.rate_limits import MANAGE, READ, WRITE, RateLimits


class Meter:
    """Count the requests of routes; one without a verb, such as a ping, is not counted."""

    def __init__(self, rates: RateLimits, routes: tuple[Route, ...]) -> None:
        self.rates = rates
        kinds = ((route.name, _kind(route)) for route in routes)
        self._kinds = {name: kind for name, kind in kinds if kind is not None}

    def admit(self, call: Call, route: Route) -> None:
        """Count a request by what it asks for: a body that is written, or managed by.

        Raises:
            TooMany: its project is too fast.
        """
        kind = self._kinds.get(route.name)
        if kind is not None:
            size = 0 if kind == READ else call.size
            self.rates.spend(call.project, kind, size)

    def answered(self, call: Call, route: Route, size: int) -> None:
        """Count the bytes that a reader was answered."""
        if size and self._kinds.get(route.name) == READ:
            self.rates.charge(call.project, READ, size)

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
