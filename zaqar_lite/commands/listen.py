"""`zaqar-lite listen`: a receiver of webhooks that prints what comes, to try things."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from zaqar_lite.commands.output import Output
from zaqar_lite.commands.running import Leaves, add_leaf
from zaqar_lite.webhooks import InvalidSignature, verify

if TYPE_CHECKING:
    from zaqar_lite.client import Client

_LARGEST = 1_048_576
_COLUMNS = ("id", "verified", "path", "body")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    text = "receive webhooks on this machine and print them; the server must allow 127.0.0.0/8"
    parser = add_leaf(subparsers, "listen", listen, text)
    parser.add_argument("--port", type=int, required=True, help="where to listen, on 127.0.0.1")
    parser.add_argument("--secret", help="verify with it; 403 for what it did not sign")
    parser.add_argument("--status", type=int, default=204, help="what to answer (204)")
    parser.add_argument("--count", type=int, help="end after so many requests")


def listen(_: "Client", arguments: argparse.Namespace, output: Output) -> None:
    """Receive until the count is reached, or until Ctrl-C."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        """Takes one request at a time."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Take a request, and answer as the command was told."""
            body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), _LARGEST))
            row, status = _row(self.path, dict(self.headers.items()), body, arguments)
            received.append(row)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Log nothing: what comes is printed."""

    with HTTPServer(("127.0.0.1", arguments.port), Handler) as server:
        count = 0
        while arguments.count is None or count < arguments.count:
            server.handle_request()
            count += len(received)
            if received:
                output.rows(iter(received), _COLUMNS, empty="")
                received.clear()


def _row(
    path: str, headers: dict[str, str], body: bytes, arguments: argparse.Namespace
) -> tuple[dict[str, Any], int]:
    """What is printed of a request, and what is answered."""
    verified, status = None, arguments.status
    if arguments.secret is not None:
        try:
            verify(headers, body, arguments.secret)
            verified = True
        except InvalidSignature:
            verified, status = False, 403
    try:
        document = json.loads(body)
    except ValueError:
        document = body.decode("utf-8", "replace")
    found = {name.lower(): value for name, value in headers.items()}
    row = {"id": found.get("webhook-id"), "verified": verified, "path": path, "body": document}
    return row, status
