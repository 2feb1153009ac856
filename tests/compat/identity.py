"""A small identity stand-in, and the authenticating gateway in front of a server.

Speaks as much of Keystone v3 as tempest asks for: a version document, password tokens scoped to a
project, and a catalog with one messaging endpoint. That endpoint is a gateway, as the README asks
for: it knows the project by the token, sets `X-Project-Id`, and passes everything else on.
Run it: `python -m tests.compat.identity PORT SERVER_URL`.
"""

import json
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_DROPPED = ("host", "x-project-id", "x-tenant-id", "connection", "transfer-encoding")


class Gateway:
    """The stand-in as an ASGI application: `/v3` is identity, everything else is messaging."""

    def __init__(self, url: str, server: str) -> None:
        self._url = url
        self._server = server
        self._projects: dict[str, str] = {}
        self._http = httpx.AsyncClient(timeout=60)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"].startswith("/v3"):
            await self._identity(scope, body, send)
        else:
            await self._pass_on(scope, body, send)

    async def _identity(self, scope: Message, body: bytes, send: Send) -> None:
        if scope["method"] == "POST" and scope["path"] == "/v3/auth/tokens":
            token, document = self._token(json.loads(body))
            await _reply(send, 201, document, [(b"x-subject-token", token.encode())])
            return
        version = {
            "id": "v3.14",
            "status": "stable",
            "links": [{"rel": "self", "href": f"{self._url}/v3/"}],
        }
        await _reply(send, 200, {"version": version})

    def _token(self, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        auth = request["auth"]
        user = auth["identity"]["password"]["user"]
        scope = auth.get("scope", {}).get("project", {})
        name = scope.get("name") or scope.get("id") or user.get("name", "demo")
        project = uuid.uuid5(uuid.NAMESPACE_URL, name).hex
        token = uuid.uuid4().hex
        self._projects[token] = project
        now = datetime.now(UTC)
        endpoint = {
            "id": "messaging",
            "interface": "public",
            "region": "here",
            "region_id": "here",
            "url": self._url,
        }
        document = {
            "token": {
                "methods": ["password"],
                "user": {
                    "id": uuid.uuid5(uuid.NAMESPACE_URL, user.get("name", "demo")).hex,
                    "name": user.get("name", "demo"),
                    "domain": {"id": "default", "name": "Default"},
                },
                "project": {
                    "id": project,
                    "name": name,
                    "domain": {"id": "default", "name": "Default"},
                },
                "roles": [{"id": "member", "name": "member"}],
                "catalog": [
                    {
                        "type": "messaging",
                        "id": "messaging",
                        "name": "zaqar",
                        "endpoints": [endpoint],
                    }
                ],
                "issued_at": now.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
                "expires_at": (now + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
            }
        }
        return token, document

    async def _pass_on(self, scope: Message, body: bytes, send: Send) -> None:
        headers = [
            (name, value) for name, value in scope["headers"] if name.decode() not in _DROPPED
        ]
        token = dict(scope["headers"]).get(b"x-auth-token", b"").decode()
        if token not in self._projects:
            await _reply(send, 401, {"error": {"title": "Unauthorized", "code": 401}})
            return
        headers.append((b"x-project-id", self._projects[token].encode()))
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        url = f"{self._server}{path}" + (f"?{query}" if query else "")
        answer = await self._http.request(scope["method"], url, headers=headers, content=body)
        passed = [
            (name, value)
            for name, value in answer.headers.raw
            if name.lower() not in (b"connection", b"transfer-encoding")
        ]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": passed})
        await send({"type": "http.response.body", "body": answer.content})


async def _reply(
    send: Send, status: int, document: Any, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = json.dumps(document).encode()
    named = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve until SIGTERM."""
    port, server = int(sys.argv[1]), sys.argv[2]
    gateway = Gateway(f"http://127.0.0.1:{port}", server)
    uvicorn.run(gateway, host="127.0.0.1", port=port, lifespan="off", log_level="warning")


if __name__ == "__main__":
    main()
