"""Small HTTP servers of the tests, each in threads of this process."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Self


class LocalServer(ThreadingHTTPServer):
    """A server on a free loopback port, or a certain one, while its block lasts."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler: type["LocalHandler"], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away is part of the test

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class LocalHandler(BaseHTTPRequestHandler):
    """A connection to it; `get`, `post` and so on answer requests, or `respond` answers all."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.respond()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class finds them

    def respond(self) -> None:
        """Answer a request of any method."""
        getattr(self, self.command.lower())()

    def read(self) -> bytes:
        """Read the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Answer the request."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
