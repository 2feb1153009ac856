"""The application over the memory store, in this process, with a clock that tests move."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.keystone import Keystone, User, cloud_in
from tests.server import ServerProcess
from tests.waiting import until
from zaqar_lite.api.asgi import Scope
from zaqar_lite.api.request import Route
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.service import startup
from zaqar_lite.settings import Settings
from zaqar_lite.testing import ZaqarClock

UNAUTHORIZED = {
    "error": {
        "code": 401,
        "title": "Unauthorized",
        "message": "The request you have made requires authentication.",
    }
}
PROJECT = "demo"
PATCH = "application/openstack-messaging-v2.0-json-patch"
CLIENT_ID = "3381af92-2b9e-11e3-b191-71861300734c"
MakeApi = Callable[..., AbstractAsyncContextManager["Api"]]
WriteCloud = Callable[..., dict[str, Any]]


@pytest.fixture
def write_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteCloud:
    """Writes the entry `ours` of clouds.yaml; answers the settings of a server that uses it."""

    def write(auth: dict[str, Any], **more: Any) -> dict[str, Any]:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", cloud_in(tmp_path, auth, **more))
        return {"auth": "keystone", "keystone_cloud": "ours"}

    return write


EVERY_ROUTE: dict[str, Any] = {
    "auth": "keys",
    "admin_mode": True,
    "pooling": True,
    "signed_url_secret_key": "not to be seen in any log, at all",
    "encryption_key_file": Path(__file__).with_name("encryption.keys"),
    "max_failed_logins": 1_000_000,
    "access_log": True,
}
"""The settings of a server that has all routes."""


class Api:
    """A client of the application, and the hand on its clock."""

    def __init__(self, http: httpx.AsyncClient, offset_file: Path, key_file: Path) -> None:
        self.http = http
        self._key_file = key_file
        self.queue = f"q-{uuid.uuid4().hex}"
        self.advance = ZaqarClock(offset_file).advance

    @property
    def operator(self) -> str:
        """The first key of a server that knows keys."""
        return self._key_file.read_text().strip()

    async def make_key(self, *grants: str, project: str = PROJECT, **more: Any) -> str:
        """Make a key, as the operator."""
        document = {"project": project, "grants": list(grants), **more}
        made = await self.http.post("/v2/keys", json=document, headers=bearer(self.operator))
        assert made.status_code == 201, made.text
        key: str = made.json()["key"]
        return key

    async def make_useless_key(self, state: str, **more: Any) -> str | None:
        """What somebody shows whose key is `wrong`, `expired` or `disabled`, or who has `none`."""
        key = await self.make_key("*:*", expires=60, **more)
        if state == "expired":
            self.advance(61)
        elif state == "disabled":
            await self.disable_key(key)
        elif state == "wrong":
            key = key[:-1] + ("0" if key[-1] != "0" else "1")
        return None if state == "none" else key

    async def disable_key(self, key: str) -> None:
        """Disable a key, as the operator."""
        path = f"/v2/keys/{key.split('_')[1]}"
        done = await self.http.patch(path, json={"disabled": True}, headers=bearer(self.operator))
        assert done.status_code == 200, done.text

    async def call(
        self,
        method: str,
        path: str,
        document: Any = None,
        **headers: str,
    ) -> httpx.Response:
        """Send a request; a path that does not begin with / is below the test's queue.

        A list in a PATCH is a patch of metadata, and says so.
        """
        url = path if path.startswith("/") else f"/v2/queues/{self.queue}{_join(path)}"
        content = None if document is None else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if method == "PATCH" and isinstance(document, list):
            named.setdefault("Content-Type", PATCH)
        return await self.http.request(method, url, content=content, headers=named)

    async def expect(
        self,
        status: int,
        method: str,
        path: str,
        document: Any = None,
        *,
        title: str = "",
        says: str = "",
        **headers: str,
    ) -> httpx.Response:
        """Send a request whose answer has this status, this title, and this in its description."""
        answer = await self.call(method, path, document, **headers)
        assert answer.status_code == status, answer.text
        assert not title or answer.json()["title"] == title, answer.text
        assert not says or says in answer.json()["description"], answer.text
        return answer

    async def set(
        self, key: str, value: object, path: str = "", *, status: int = 200, **said: str
    ) -> httpx.Response:
        """Set one key of a queue's metadata by a patch, whose answer has this status."""
        operation = {"op": "add", "path": f"/metadata/{key}", "value": value}
        return await self.expect(status, "PATCH", path, [operation], **said)

    async def until(self, path: str, enough: Callable[[Any], object], **headers: str) -> Any:
        """Read a document again and again until it is enough."""

        async def read() -> Any:
            return (await self.call("GET", path, **headers)).json()

        return await until(read, enough)

    async def post(self, *messages: dict[str, Any], **headers: str) -> list[str]:
        """Post messages to the test's queue; answer their ids."""
        answer = await self.call("POST", "messages", {"messages": list(messages)}, **headers)
        assert answer.status_code == 201, answer.text
        return [href.rsplit("/", 1)[1] for href in answer.json()["resources"]]

    async def claim(self, limit: int = 10, query: str = "", **times: int) -> list[dict[str, Any]]:
        """Claim messages of the test's queue; answer them."""
        answer = await self.call("POST", f"claims?limit={limit}{query}", times or None)
        assert answer.status_code in (201, 204), answer.text
        messages: list[dict[str, Any]] = (
            answer.json()["messages"] if answer.status_code == 201 else []
        )
        return messages

    async def browse(self, query: str = "echo=true") -> list[dict[str, Any]]:
        """List the test's queue; answer the messages of the first page."""
        answer = await self.call("GET", f"messages?{query}")
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    async def bodies(self, queue: str = "") -> list[Any]:
        """The bodies of a queue's first page, those that are delayed too."""
        path = f"/v2/queues/{queue or self.queue}/messages?echo=true&include_delayed=true"
        answer = await self.expect(200, "GET", path)
        return [message["body"] for message in answer.json()["messages"]]


def bearer(key: str) -> dict[str, str]:
    """The header of who has a key."""
    return {"Authorization": f"Bearer {key}"}


def claim_id_of(message: dict[str, Any]) -> str:
    """The claim id in a claimed message's href."""
    href: str = message["href"]
    return href.rsplit("=", 1)[1]


def signed_by(shared: dict[str, Any]) -> dict[str, str]:
    """The headers of a request by a pre-signed URL."""
    return {
        "URL-Signature": shared["signature"],
        "URL-Expires": shared["expires"],
        "URL-Methods": ",".join(shared["methods"]),
        "URL-Paths": ",".join(shared["paths"]),
    }


_OF_CHECKS = (400, 401, 403, 404, 406, 413, 429, 431)
"""Refusals that come before a route's action."""


def declared_by(routes: Sequence[Route]) -> Callable[[httpx.Response], Awaitable[None]]:
    """A hook that lets no answer pass whose status neither its route nor a check has."""
    known = [
        (one.method, re.compile(re.sub(r"{\w+}", "[^/]+", one.template)), one.statuses)
        for one in routes
    ]

    async def check(answer: httpx.Response) -> None:
        method, path = answer.request.method, answer.request.url.path
        named = [
            all_of for of, pattern, all_of in known if of == method and pattern.fullmatch(path)
        ]
        assert not named or answer.status_code in (*named[0], *_OF_CHECKS)

    return check


@pytest.fixture
def make_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeApi:
    """Make an application with other settings, or limits, than the default.

    A store of this process is open before the first request, however busy the machine is.
    """
    offset_file = tmp_path / "clock"

    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Api]:
        known = {"store": "memory://", "clock_offset_file": offset_file}
        if "keys" in settings.get("auth", ""):
            known["admin_key_file"] = tmp_path / "admin.key"
        known |= {name: settings[name] for name in settings if name in Settings.model_fields}
        loaded = load(environment={}, overrides=known)
        others = {name: settings[name] for name in settings if name not in known}
        app = create_app(loaded, limits=replace(loaded.limits(), **others))
        if loaded.store.startswith(("memory:", "embedded:")):
            monkeypatch.setattr(startup, "_PATIENCE", 60.0)
        async with (
            running(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://localhost",
                headers={"Client-ID": CLIENT_ID, "X-Project-ID": PROJECT},
                event_hooks={"response": [declared_by(app.routes)]},
            ) as http,
        ):
            yield Api(http, offset_file, loaded.admin_key_file or tmp_path / "admin.key")

    return make


@pytest.fixture
async def api(make_api: MakeApi) -> AsyncIterator[Api]:
    """The application with its default settings."""
    async with make_api() as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with its defaults."""
    with ServerProcess("memory://") as started:
        yield started


@pytest.fixture
async def operated(make_api: MakeApi) -> AsyncIterator[Api]:
    """A server with every route, and who may do everything."""
    async with make_api(**EVERY_ROUTE) as made:
        made.http.headers.update(bearer(made.operator))
        yield made


@pytest.fixture
def keystone() -> Iterator[Keystone]:
    """Keystone, in which the server may have the account zaqar."""
    with Keystone() as running:
        running.state.users["zaqar"] = User("secret", "service", ("service",))
        yield running


def nested(depth: int) -> Any:
    """Lists within lists."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[None]:
    """Run an application's lifespan, as a server does."""
    to_app: asyncio.Queue[Scope] = asyncio.Queue()
    from_app: asyncio.Queue[Scope] = asyncio.Queue()
    task = asyncio.ensure_future(
        app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put)
    )

    async def said() -> str:
        """What the application says next, unless it ends with an error first."""
        saying = asyncio.ensure_future(from_app.get())
        await asyncio.wait({task, saying}, return_when=asyncio.FIRST_COMPLETED)
        if not saying.done():
            saying.cancel()
            await task
        return str((await saying)["type"])

    await to_app.put({"type": "lifespan.startup"})
    assert await said() == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert await said() == "lifespan.shutdown.complete"
        await task


def _join(path: str) -> str:
    return path if not path or path.startswith("?") else f"/{path}"
