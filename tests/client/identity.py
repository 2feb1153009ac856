"""As much of Keystone v3 as a login needs, on a real socket."""

import datetime as dt
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Identity(ThreadingHTTPServer):
    """`messaging` is the address in its catalogue; `logins` are the identities that came."""

    daemon_threads = True

    def __init__(self, messaging: str | None) -> None:
        super().__init__(("127.0.0.1", 0), IdentityHandler)
        self.messaging = messaging
        self.lifetime = dt.timedelta(hours=1)
        self.logins: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v3"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def token(self) -> dict[str, Any]:
        catalog = []
        if self.messaging is not None:
            endpoint = {
                "interface": "public",
                "region_id": "here",
                "url": self.messaging,
                "id": "e",
            }
            catalog = [{"type": "messaging", "name": "zaqar", "id": "s", "endpoints": [endpoint]}]
        expires = dt.datetime.now(dt.UTC) + self.lifetime
        return {
            "methods": ["password"],
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "expires_at": expires.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
            "project": {"id": "p123", "name": "demo", "domain": {"id": "default", "name": "D"}},
            "user": {"id": "u1", "name": "demo", "domain": {"id": "default", "name": "D"}},
            "roles": [{"id": "r", "name": "member"}],
            "catalog": catalog,
        }


class IdentityHandler(BaseHTTPRequestHandler):
    server: Identity
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        links = [{"rel": "self", "href": self.server.url}]
        version = {"id": "v3.14", "status": "stable", "links": links}
        self.answer(200, {"version": version})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        identity = body["auth"]["identity"]
        if "wrong" in json.dumps(identity):
            self.answer(401, {"error": {"code": 401, "message": "no", "title": "Unauthorized"}})
            return
        self.server.logins.append(identity)
        number = len(self.server.logins)
        self.answer(201, {"token": self.server.token()}, {"X-Subject-Token": f"token-{number}"})

    def answer(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass
