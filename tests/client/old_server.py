"""A server of before: no jobs, no streams, no settling of single messages, no waiting.

It stands in front of a real one and passes on what it knows, as OpenStack's Zaqar would.
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

NOT_PASSED_ON = {"host", "content-length", "connection"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "OldServer"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(f"{self.command} {self.path}")
        if self.server.deaf:
            self.server.ended.wait(60)
            return
        parts = urlsplit(self.path)
        if parts.path.endswith(("/settle", "/redrives", "/events")):
            self.answer(404, {}, b"")
            return
        known = [(name, value) for name, value in parse_qsl(parts.query) if name != "wait"]
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON
        }
        behind = http.client.HTTPConnection("127.0.0.1", self.server.port_behind)
        behind.request(self.command, f"{parts.path}?{urlencode(known, safe=',')}", body, headers)
        answer = behind.getresponse()
        self.answer(answer.status, dict(answer.getheaders()), answer.read())
        behind.close()

    do_GET = do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815 - the base class finds them by name

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {"content-length", "date", "server", "connection"}:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


class OldServer(ThreadingHTTPServer):
    """`seen` is what was asked of it; while it is `deaf` it neither answers nor closes."""

    daemon_threads = True

    def __init__(self, port_behind: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.port_behind = port_behind
        self.seen: list[str] = []
        self.deaf = False
        self.ended = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()
