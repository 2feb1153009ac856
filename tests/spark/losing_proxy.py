"""A proxy before the server that loses answers, or holds requests until who asked is dead."""

import itertools
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import urllib3

Rule = Callable[[int], bool]


class LosingProxy:
    """Pass requests on.

    `lose` tells of the nth POST (from 0) whether its answer is lost: the server does what was
    asked, nobody hears. `hold` tells of the nth DELETE whether it stops here, for ever; `held` is
    set then.
    """

    def __init__(self, upstream: str) -> None:
        self.lose: Rule = lambda _: False
        self.hold: Rule = lambda _: False
        self.held = threading.Event()
        self.posts = 0
        self.lost = 0
        self._pool = urllib3.PoolManager(maxsize=32, retries=False)
        self._numbers = itertools.count()
        self._deletes = itertools.count()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def pass_on(self) -> None:
                if self.command == "DELETE" and outer.hold(next(outer._deletes)):
                    outer.held.set()
                    self.close_connection = True
                    self.connection.recv(1)  # until the other side is gone
                    return
                length = int(self.headers.get("Content-Length", 0))
                answer = outer._pool.request(
                    self.command,
                    upstream + self.path,
                    body=self.rfile.read(length),
                    headers={k: v for k, v in self.headers.items() if k.lower() != "host"},
                )
                if self.command == "POST":
                    number = next(outer._numbers)
                    outer.posts = number + 1
                    if outer.lose(number):
                        outer.lost += 1
                        self.close_connection = True
                        return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.data)))
                self.end_headers()
                self.wfile.write(answer.data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()
