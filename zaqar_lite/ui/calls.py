"""Requests of the page to the API, in this process, and the addresses of what it shows."""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

if TYPE_CHECKING:
    from starlette.requests import Request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Query = Mapping[str, object] | None
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_JSON, _PATCH = b"application/json", b"application/openstack-messaging-v2.0-json-patch"
CLIENT_ID = b"75690000-0000-4000-8000-000000000000"
OWN = "-"
"""The name of a key's own project in the page's paths."""


class Answer(NamedTuple):
    """What the API answered; `document` is its JSON, its text where it is text, or None."""

    status: int
    document: Any


class Refused(Exception):
    """What was asked is refused, by the API or by the page itself; the page says why."""

    def __init__(self, title: str, description: str = "", status: int = 400) -> None:
        super().__init__(title)
        self.title, self.description, self.status = title, description, status


@dataclass(frozen=True, slots=True)
class Caller:
    """Who looks at the page: requests go to `app` with this key and project, from `address`."""

    app: App
    project: str
    key: str | None = field(repr=False)
    host: bytes
    address: tuple[str, int] | None

    async def get(self, path: str, query: Query = None) -> Any:  # noqa: ANN401 - JSON, or text
        """Return the document at a path; raises as `call`."""
        return (await self.call("GET", path, query)).document

    async def find(self, path: str, query: Query = None) -> Any:  # noqa: ANN401 - as `get`
        """Return the document at a path; None if the API refuses to show it."""
        try:
            return await self.get(path, query)
        except Refused:
            return None

    async def call(
        self, method: str, path: str, query: Query = None, document: object = None
    ) -> Answer:
        """Send a request; a list is a patch of metadata.

        Raises:
            Refused: the answer is an error.
        """
        try:
            body = b"" if document is None else json.dumps(document).encode()
        except RecursionError:
            raise Refused("What was typed is nested too deeply") from None
        text = urlencode({key: value for key, value in (query or {}).items() if value is not None})
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": text.encode(),
            "headers": self._headers(body, _PATCH if isinstance(document, list) else _JSON),
            "client": self.address,
        }
        started: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        whole = b"".join(parts)
        is_text = dict(started["headers"]).get(b"content-type", b"").startswith(b"text/")
        found = whole.decode() if is_text else json.loads(whole) if whole else None
        status: int = started["status"]
        if status >= 400:
            told = found if isinstance(found, dict) else {}
            title = told.get("title") or f"The server answered {status}"
            raise Refused(str(title), str(told.get("description") or ""), status)
        return Answer(status, found)

    def _headers(self, body: bytes, content_type: bytes) -> list[tuple[bytes, bytes]]:
        headers = [(b"host", self.host), (b"client-id", CLIENT_ID)]
        if self.project != OWN:
            headers.append((b"x-project-id", self.project.encode()))
        if self.key is not None:
            headers.append((b"authorization", b"Bearer " + self.key.encode()))
        if body:
            headers += [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        return headers


def quoted(name: str) -> str:
    """Write a name as one part of an address."""
    return quote(name, safe="")


def project_address(request: "Request") -> str:
    """Where the page shows the project; empty for a page of none."""
    name = request.path_params.get("project")
    return f"/ui/p/{quoted(name)}/" if name else ""


def queue_address(request: "Request") -> str:
    """Where the page shows the queue; empty for a page of none."""
    name = request.path_params.get("queue")
    return f"{project_address(request)}q/{quoted(name)}/" if name else ""


def queue_path(request: "Request") -> str:
    """Where the API has the queue."""
    return f"/v2/queues/{quoted(request.path_params['queue'])}"


def message_path(request: "Request") -> str:
    """Where the API has the message."""
    return f"{queue_path(request)}/messages/{quoted(request.path_params['message'])}"


def job_path(request: "Request") -> str:
    """Where the API has the job."""
    act = request.query_params.get("act", "redrive")
    kind = f"delayed/{quoted(act)}" if act != "redrive" else "redrives"
    return f"{queue_path(request)}/{kind}/{quoted(request.path_params['job'])}"
