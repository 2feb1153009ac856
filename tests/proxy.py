"""A proxy in front of a real server that refuses, loses or holds some of the requests."""

import http.client
import itertools
import threading
from collections.abc import Callable
from enum import Enum, auto
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.local_http import LocalHandler, LocalServer


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


class Proxy(LocalServer):
    """`choose` is asked for every request; `seen` are the requests, `faults` what it said."""

    def __init__(self, upstream: str, choose: Choice = lambda *_: Fault.NONE) -> None:
        super().__init__(_Handler)
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

    def __exit__(self, *_: object) -> None:
        self.has_ended = True
        self.release.set()
        super().__exit__()


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


class _Handler(LocalHandler):
    server: Proxy

    def respond(self) -> None:
        body, proxy = self.read(), self.server
        self.close_connection = True  # each answer ends it, so that a lost one is no old connection
        with proxy.lock:
            fault = proxy.choose(self.command, self.path)
            proxy.seen.append(f"{self.command} {self.path}")
            proxy.faults.append(fault)
        if isinstance(fault, int):
            self.answer(fault, b"{}", {"Retry-After": "0", "Connection": "close"})
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
            own |= {"date", "server"}
            told = {name: value for name, value in answer.getheaders() if name.lower() not in own}
            self.answer(answer.status, content, {**told, "Connection": "close"})
