"""A small real HTTP server that stores what it is sent and fails as it is told to.

Each request takes the next fault of the script; when the script is empty everything works. What a
fault does happens on a real socket: the connection is dropped, the answer is late or is a refusal.
"""

import json
import socketserver
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler
from typing import Self

DROP = "drop"  # close the connection before doing anything
LOSE = "lose"  # do what was asked, then close the connection instead of answering
GARBAGE = "garbage"  # answer 200 with a proxy's page
PAGE = b"<html>Welcome to the hotel's <b>wireless network</b></html>"
SLOW = "slow"  # do what was asked, but answer only after a second
Fault = str | int | tuple[int, dict[str, str]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "FaultyServer"

    def do_POST(self) -> None:
        server = self.server
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        with server.lock:
            server.seen.append((time.monotonic(), dict(self.headers.items())))
            fault: Fault = server.script.popleft() if server.script else ""
        if fault == DROP:
            self.close_connection = True
            return
        if isinstance(fault, int):
            fault = (fault, {})
        if isinstance(fault, tuple):
            status, headers = fault
            document = {"title": f"Title {status}", "description": f"Description {status}."}
            self.answer(status, json.dumps(document).encode(), headers)
            return
        if fault == GARBAGE:
            self.answer(200, PAGE, {})
            return
        answer = self.store(body)
        if fault == LOSE:
            self.close_connection = True
            return
        if fault == SLOW:
            time.sleep(1)
        self.answer(*answer)

    do_GET = do_PATCH = do_DELETE = do_POST  # noqa: N815 - the base class finds them by name

    def store(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        server = self.server
        if self.command != "POST" or "/messages" not in self.path:
            popped = [{"id": "1", "body": 1, "ttl": 60, "age": 0}]
            return 200, json.dumps({"messages": popped}).encode(), {}
        key = self.headers["Idempotency-Key"]
        with server.lock:
            if key not in server.answers:
                first = len(server.stored)
                messages = json.loads(body)["messages"]
                server.stored.extend(message["body"] for message in messages)
                hrefs = [f"{self.path}/{first + number}" for number in range(len(messages))]
                server.answers[key] = json.dumps({"resources": hrefs}).encode()
            return 201, server.answers[key], {}

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "X-OpenStack-Request-Id": "req-1"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


class FaultyServer(socketserver.ThreadingTCPServer):
    """`script` is what goes wrong next; `seen` and `stored` are what came."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.script: deque[Fault] = deque()
        self.seen: list[tuple[float, dict[str, str]]] = []
        self.stored: list[object] = []
        self.answers: dict[str, bytes] = {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away is part of the test

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
