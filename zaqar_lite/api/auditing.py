"""Record managing acts in the audit trail, in the fields of CADF (DMTF DSP0262).

A route manages where it changes something and its verb is `manage` or `admin`, unless it is hot:
those are about single messages. Action and target are made from the route's name and path, so a new
route is recorded without more. Bodies and queries are not read, and of the headers only those that
say who sent the request, and with what program.
"""

import re
import socket
import uuid
from datetime import UTC, datetime

from zaqar_lite.api.request import Request, Response, Route
from zaqar_lite.domain.identity import How, Verb
from zaqar_lite.service.audit import Act, Event, Trail

_TYPE = "http://schemas.dmtf.org/cloud/audit/1.0/event"
_ACTIONS = {
    "create": "create",
    "update": "update",
    "change": "update",
    "set": "update",
    "delete": "delete",
    "reset": "delete",
    "share": "allow",
    "unshare": "revoke",
    "put": "create",
    "begin": "start",
    "start": "start",
    "cancel": "stop",
}
_TWIN = re.compile("^(topic|sqs)_")
"""What the names of routes begin with that do the same as others."""
_SINGULAR = {"deliveries": "delivery"}
_LONGEST = 256
"""Characters of what a client says of itself."""


class Auditor:
    """Make an event of each managing act, and add it to the trail."""

    def __init__(self, trail: Trail, routes: tuple[Route, ...]) -> None:
        self._trail = trail
        self._acts = {route.name: _act(route) for route in routes if is_managing(route)}
        self.reopen = trail.reopen
        """Go on in a new file where the old one was moved away."""

    def record(self, request: Request, response: Response) -> None:
        """Record that an act was tried, and how it ended; pass over any other request."""
        act = None if request.route is None else self._acts.get(request.route.name)
        if act is not None:
            self._trail.add(_event(request, act, response))


def is_managing(route: Route) -> bool:
    """Tell whether a route's requests are managing acts."""
    manages = route.access.verb in (Verb.MANAGE, Verb.ADMIN)
    return manages and not route.hot and route.method not in ("GET", "HEAD")


def _act(route: Route) -> Act:
    word = _TWIN.sub("", route.name).partition("_")[0]
    nouns = [part for part in route.template.split("/") if part.endswith("s")]
    if not nouns:  # a dialect's, whose paths name nothing
        nouns = [(route.access.rule or "").partition(":")[0]]
    noun = _SINGULAR.get(nouns[-1], nouns[-1].removesuffix("s"))
    return Act(_ACTIONS.get(word, f"update/{word}"), f"data/messaging/{noun}")


def _event(request: Request, act: Act, response: Response) -> Event:
    status, location = response.status, dict(response.headers).get(b"location", b"")
    principal, headers = request.principal, request.headers
    named = headers.get(b"x-user-id", b"") if principal.how is How.HEADERS else b""
    user = principal.user or _text(named) or "unknown"
    made = location.decode().rpartition("/")[2]
    names = [*request.path_values]
    if made and made not in request.path:
        names.append(made)
    return {
        "typeURI": _TYPE,
        "eventType": "activity",
        "id": str(uuid.uuid4()),
        "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "action": act.action,
        "outcome": _outcome(status),
        "reason": {"reasonType": "HTTP", "reasonCode": str(status)},
        "initiator": {
            "typeURI": "service/security/account/user",
            "id": user,
            "project_id": request.project,
            "credential": {"type": principal.how.value},
            "host": {
                "id": request.client_id,
                "address": request.address,
                "agent": _text(headers.get(b"user-agent", b"")),
            },
        },
        "target": {"typeURI": act.target, "id": "/".join(names)},
        "observer": {
            "typeURI": "service/messaging",
            "id": socket.gethostname(),
            "name": "zaqar-lite",
        },
        "requestPath": request.path,
        "tags": [f"correlation_id?value={request.request_id}"],
    }


def _outcome(status: int) -> str:
    """CADF's outcome; a fault of the server leaves open whether it was done."""
    if status >= 500:
        return "unknown"
    return "failure" if status >= 400 else "success"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")[:_LONGEST]
