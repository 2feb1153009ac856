"""Zaqar's own tests of its two transports, sent to a running server: a plugin of pytest.

It runs inside Zaqar's environment. The tests are unmodified; what they take for the program under
test (`bootstrap.Bootstrap`) stands for a server here: its WSGI application sends the request on by
HTTP, its WebSocket protocol by a frame. Where a test moves Zaqar's clock (a patched `utcnow`), the
server's is moved by as much, through the file that it reads.

Environment: SERVERS, a JSON object of URLs: "plain", "pooled" (queues in pools), "small" (little
metadata and short posts), "strict" (any Client-ID; a delete names its claim), "guarded" (it asks
for a token), "broken" (its store is away) and "websocket" (of "plain"); CLOCK_OFFSET_FILE;
SIGNED_URL_SECRET_KEY, which is longer than the tests' own.
"""

import contextlib
import datetime as dt
import http.client
import json
import os
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import websocket
from oslo_utils import timeutils
from zaqar.common import urls
from zaqar.conf import drivers_management_store_mongodb as mongodb
from zaqar.conf import drivers_message_store_mongodb as mongodb_messages
from zaqar.tests.unit.transport.websocket import base as websocket_base
from zaqar.tests.unit.transport.wsgi import base as wsgi_base
from zaqar.transport.base import ResourceDefaults

SERVERS: dict[str, str] = json.loads(os.environ["SERVERS"])
ADMIN = {
    "Client-ID": "3381af92-2b9e-11e3-b191-71861300734c",
    "X-Project-Id": "zaqar-tests",
    "X-Roles": "admin",
}


class Clock:
    """The server's clock follows the tests'; it never goes back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_moved = False

    def follow(self) -> None:
        """Move the server's clock once where a test has moved its own."""
        told: Any = timeutils.utcnow()
        now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
        ahead = (told - now).total_seconds() if isinstance(told, dt.datetime) else 0
        if ahead > 1 and not self._is_moved:
            offset = int(self._path.read_text(encoding="ascii")) + int(ahead * 1000)
            self._path.write_text(str(offset), encoding="ascii")
        self._is_moved = ahead > 1


CLOCK = Clock(Path(os.environ["CLOCK_OFFSET_FILE"]))


class Projects:
    """The projects that a test has named: the next one finds them empty, as in Zaqar's database."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def add(self, project: object) -> None:
        """Note a project."""
        if isinstance(project, str) and project:
            self._named.add(project)

    def clear(self, remote: "Remote") -> None:
        """Remove the queues and topics of all of them."""
        for project in self._named:
            headers = {**ADMIN, "X-Project-Id": project}
            for kind in ("queues", "topics"):
                while names := remote.names(kind, headers):
                    for name in names:
                        remote.ask("DELETE", f"/v2/{kind}/{name}", None, headers)
        self._named.clear()


PROJECTS = Projects()


class Remote:
    """A server by its URL."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname is not None
        self._address = (parts.hostname, parts.port)

    def ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send one request; answer its status, headers and body."""
        CLOCK.follow()
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def application(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> list[bytes]:
        """Answer as a WSGI application."""
        path = urllib.parse.quote(environ["PATH_INFO"].encode("latin-1"))
        if environ.get("QUERY_STRING"):
            path += "?" + urllib.parse.quote(environ["QUERY_STRING"], safe="%=&+:/?,;!*'()@$")
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") and name != "HTTP_HOST"
        }
        if environ.get("CONTENT_TYPE"):
            headers["Content-Type"] = environ["CONTENT_TYPE"]
        PROJECTS.add(environ.get("HTTP_X_PROJECT_ID"))
        body = environ["wsgi.input"].read() or None
        status, found, content = self.ask(environ["REQUEST_METHOD"], path, body, headers)
        start_response(f"{status} {http.client.responses[status]}", found)
        return [content] if content else []

    def names(self, kind: str, headers: dict[str, str]) -> list[str]:
        """Name what a page of a list has."""
        status, _, body = self.ask("GET", f"/v2/{kind}?limit=20", None, headers)
        return [entry["name"] for entry in json.loads(body)[kind]] if status == 200 else []


class Nothing:
    """Takes every call: what the tests do to Zaqar's own databases before and after."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __getattr__(self, _: str) -> "Nothing":
        return self

    def __call__(self, *_: object, **__: object) -> "Nothing":
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())


class Pools(Nothing):
    """The pools of a server, of which the tests drop all at their end."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def drop_all(self) -> None:
        """Remove them, and the flavors that name them."""
        for kind in ("flavors", "pools"):
            for name in self._remote.names(kind, ADMIN):
                self._remote.ask("DELETE", f"/v2/{kind}/{name}", None, ADMIN)


class Subscriptions(Nothing):
    """The subscriptions of a server, by the calls that the tests make of Zaqar's controller."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def list(self, queue: str, project: str) -> Iterator[Any]:
        """Answer an iterator of one page, as Zaqar's does."""
        found = self._ask("GET", queue, "", None, project)["subscriptions"]
        return iter([iter(found)])

    def create(
        self, queue: str, subscriber: str, ttl: int, options: object, project: str
    ) -> str | None:
        """Make one; answer its id."""
        document = {"subscriber": subscriber, "ttl": ttl, "options": options}
        made: str | None = self._ask("POST", queue, "", document, project).get("subscription_id")
        return made

    def delete(self, queue: str, identifier: str, project: str) -> None:
        """Remove one."""
        self._ask("DELETE", queue, f"/{identifier}", None, project)

    def _ask(self, method: str, queue: str, rest: str, document: object, project: str) -> Any:
        body = None if document is None else json.dumps(document).encode()
        headers = {**ADMIN, "X-Project-Id": project, "Content-Type": "application/json"}
        path = f"/v2/queues/{queue}/subscriptions{rest}"
        return json.loads(self._remote.ask(method, path, body, headers)[2] or "{}")


class Protocol(Nothing):
    """One WebSocket connection, by the names that the tests know of Zaqar's."""

    def __init__(self) -> None:
        self._socket: websocket.WebSocket | None = None

    def onMessage(self, payload: str | bytes, is_binary: bool) -> None:  # noqa: N802 - Zaqar's name
        """Send a frame, and hand the answer to what the test put in the place of `sendMessage`."""
        CLOCK.follow()
        if self._socket is None:
            self._socket = websocket.create_connection(SERVERS["websocket"], timeout=60)
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
            PROJECTS.add((msgpack if is_binary else json).loads(payload)["headers"]["X-Project-ID"])
        if isinstance(payload, bytes):
            self._socket.send_binary(payload)
        else:
            self._socket.send(payload)
        opcode, answer = self._socket.recv_data()
        self.sendMessage(answer, opcode == websocket.ABNF.OPCODE_BINARY)

    def sendMessage(self, payload: bytes, is_binary: bool) -> None:  # noqa: N802 - Zaqar's name
        """Take an answer that no test looks at."""


def kind_of(conf: Any) -> str:
    """Name the server that is configured as Zaqar would be."""
    if conf.drivers.message_store == "faulty":
        return "broken"
    if conf.auth_strategy:
        return "guarded"
    if conf.transport.max_queue_metadata < 1_000:
        return "small"
    if conf.transport.message_delete_with_claim_id or conf.transport.client_id_uuid_safe == "off":
        return "strict"
    return "pooled" if conf.pooling else "plain"


class Server:
    """What the tests take for Zaqar's `Bootstrap`."""

    def __init__(self, conf: Any) -> None:
        conf.set_override("secret_key", os.environ["SIGNED_URL_SECRET_KEY"], "signed_url")
        conf.register_opts(mongodb.ALL_OPTS, mongodb.GROUP_NAME)
        conf.register_opts(mongodb_messages.ALL_OPTS, mongodb_messages.GROUP_NAME)
        remote = Remote(SERVERS[kind_of(conf)])
        PROJECTS.clear(remote)
        defaults = ResourceDefaults(conf)
        self.storage = Nothing(subscription_controller=Subscriptions(remote))
        self.control = Nothing(pools_controller=Pools(remote))
        self.transport = Nothing(
            # A test changes the configuration as it goes along.
            app=lambda *call: Remote(SERVERS[kind_of(conf)]).application(*call),
            factory=Protocol,
            _defaults=defaults,
        )
        self.api = Nothing(get_defaults=lambda: defaults)


def pytest_configure() -> None:
    """Put a server in the place of Zaqar, and its key in the place of the tests'."""
    wsgi_base.bootstrap.Bootstrap = Server
    websocket_base.bootstrap.Bootstrap = Server
    sign = urls.create_signed_url

    def sign_by_the_servers_key(_: str, *arguments: Any, **named: Any) -> Any:
        return sign(os.environ["SIGNED_URL_SECRET_KEY"], *arguments, **named)

    urls.create_signed_url = sign_by_the_servers_key
