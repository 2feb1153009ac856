"""A small real HTTP server that stores what it is sent and fails as it is told to.

Each request takes the next fault of the script; when the script is empty everything works. What a
fault does happens on a real socket: the connection is dropped, the answer is late or is a refusal.
"""

import json
import threading
import time
from collections import deque

from tests.local_http import LocalHandler, LocalServer

DROP = "drop"  # close the connection before doing anything
LOSE = "lose"  # do what was asked, then close the connection instead of answering
GARBAGE = "garbage"  # answer 200 with a proxy's page
PAGE = b"<html>Welcome to the hotel's <b>wireless network</b></html>"
SLOW = "slow"  # do what was asked, but answer only after a second
REQUEST_ID = {"X-OpenStack-Request-Id": "req-1"}
Fault = str | int | tuple[int, dict[str, str]]


class Handler(LocalHandler):
    server: "FaultyServer"

    def respond(self) -> None:
        body, server = self.read(), self.server
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
            self.answer(status, json.dumps(document).encode(), {**headers, **REQUEST_ID})
            return
        if fault == GARBAGE:
            self.answer(200, PAGE)
            return
        status, stored = self.store(body)
        if fault == LOSE:
            self.close_connection = True
            return
        if fault == SLOW:
            time.sleep(1)
        self.answer(status, stored)

    def store(self, body: bytes) -> tuple[int, bytes]:
        server = self.server
        if self.command != "POST" or "/messages" not in self.path:
            popped = [{"id": "1", "body": 1, "ttl": 60, "age": 0}]
            return 200, json.dumps({"messages": popped}).encode()
        key = self.headers["Idempotency-Key"]
        with server.lock:
            if not key or key not in server.answers:
                first = len(server.stored)
                messages = json.loads(body)["messages"]
                server.stored.extend(message["body"] for message in messages)
                hrefs = [f"{self.path}/{first + number}" for number in range(len(messages))]
                server.answers[key] = json.dumps({"resources": hrefs}).encode()
            return 201, server.answers[key]


class FaultyServer(LocalServer):
    """`script` is what goes wrong next; `seen` and `stored` are what came."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.lock = threading.Lock()
        self.script: deque[Fault] = deque()
        self.seen: list[tuple[float, dict[str, str]]] = []
        self.stored: list[object] = []
        self.answers: dict[str, bytes] = {}
