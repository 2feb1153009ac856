"""A proxy in front of a real server that refuses, loses or holds some of the requests."""

import http.client
import itertools
import threading
from collections.abc import Callable
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit


class Fault(Enum):
    """What happens to a request that is not simply refused."""

    NONE = auto()
    LOSE = auto()
    """It is passed on, and the answer is lost."""
    HOLD = auto()
    """It is passed on when `release` is set, and dropped when the proxy ends before that."""


Choice = Callable[[str, str], Fault | int]
"""Tells of a method and a path what happens to the request; a number is the status of a refusal."""


def nth(method: str, rule: Callable[[int], bool], fault: Fault) -> Choice:
    """Let this happen to the requests of a method whose number, from 0, the rule accepts."""
    numbers = itertools.count()
    return lambda asked, _: fault if asked == method and rule(next(numbers)) else Fault.NONE


class Proxy(ThreadingHTTPServer):
    """`choose` is asked for every request; `seen` are the requests, `faults` what it said."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str, choose: Choice = lambda *_: Fault.NONE) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.upstream = urlsplit(upstream).netloc
        self.choose = choose
        self.seen: list[str] = []
        self.faults: list[Fault | int] = []
        self.held = threading.Event()
        self.release = threading.Event()
        self.has_ended = False
        self.lock = threading.Lock()

    def rewritten(self, path: str) -> str:
        """The path and query that the server gets."""
        return path

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away is part of the test

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.has_ended = True
        self.release.set()
        self.shutdown()
        self.server_close()


class OldServer(Proxy):
    """A server of before, as OpenStack's Zaqar: no jobs, no streams, no settling, no waiting.

    While it is `deaf` it neither answers nor closes.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream, self._choose)
        self.deaf = False

    def rewritten(self, path: str) -> str:
        parts = urlsplit(path)
        known = [(name, value) for name, value in parse_qsl(parts.query) if name != "wait"]
        return f"{parts.path}?{urlencode(known, safe=',')}"

    def _choose(self, _: str, path: str) -> Fault | int:
        if self.deaf:
            return Fault.HOLD
        unknown = urlsplit(path).path.endswith(("/settle", "/redrives", "/events"))
        return 404 if unknown else Fault.NONE


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy = self.server
        self.close_connection = True  # each answer ends it, so that a lost one is no old connection
        with proxy.lock:
            fault = proxy.choose(self.command, self.path)
            proxy.seen.append(f"{self.command} {self.path}")
            proxy.faults.append(fault)
        if isinstance(fault, int):
            self._answer(fault, {"Retry-After": "0"}, b"{}")
            return
        if fault is Fault.HOLD:
            proxy.held.set()
            proxy.release.wait()
            if proxy.has_ended:
                return
        own = {"host", "content-length", "connection"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in own}
        behind = http.client.HTTPConnection(proxy.upstream, timeout=60)
        behind.request(self.command, proxy.rewritten(self.path), body, headers)
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        if fault is not Fault.LOSE:
            self._answer(answer.status, dict(answer.getheaders()), content)

    do_GET = do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815 - the base class finds them by name

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        own = {"content-length", "date", "server", "connection"}
        for name, value in headers.items():
            if name.lower() not in own:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
