"""`zaqar-lite listen`: a receiver of webhooks that prints requests, for trying things out."""

import argparse
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import UsageError, json_or_text, number
from zaqar_lite.commands.base_command import Leaves, Verbs
from zaqar_lite.commands.output import Output
from zaqar_lite.webhooks import InvalidSignature, sign, verify

_LARGEST = 1_048_576
_COLUMNS = ("id", "verified", "path", "body")


def add_commands(subparsers: Leaves) -> None:
    """Declare the command."""
    text = "receive webhooks on this machine and print them; the server must allow 127.0.0.0/8"
    parser = Verbs(subparsers).leaf("listen", listen, text)
    number(parser, "--port", "where to listen, on 127.0.0.1", least=0, most=65535, required=True)
    parser.add_argument("--secret", help="verify with it; answer 403 to what it did not sign")
    number(parser, "--status", "what to answer (204)", least=200, most=599, default=204)
    number(parser, "--count", "end after so many requests")


def listen(_: "sdk.Client", arguments: argparse.Namespace, output: Output) -> None:
    """Receive until the count is reached, or until Ctrl-C."""
    if arguments.secret is not None:
        sign(arguments.secret, message_id="", timestamp=0, body=b"")  # refuses what is no secret
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        """Takes one request at a time."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Take a request, and answer as the command was told."""
            length = self.headers.get("Content-Length") or "0"
            if not (length.isascii() and length.isdigit()):
                self.send_error(400)
                return
            body = self.rfile.read(min(int(length[:20]), _LARGEST))
            row, status = _row(self.path, dict(self.headers.items()), body, arguments)
            received.append(row)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Log nothing: each request is printed."""

    class Receiver(HTTPServer):
        """Goes on when a client breaks off."""

        def handle_error(self, *_: object) -> None:
            """Say so in one line."""
            print(f"zaqar-lite: a request broke off: {sys.exception()}", file=sys.stderr)

    try:
        receiver = Receiver(("127.0.0.1", arguments.port), Handler)
    except OSError as error:
        raise UsageError(f"can't listen on port {arguments.port}: {error.strerror}") from error
    with receiver as server:
        output.say(f"Listening on http://127.0.0.1:{server.server_port}/; Ctrl-C ends.")
        count = 0
        while arguments.count is None or count < arguments.count:
            server.handle_request()
            count += len(received)
            if received:
                output.rows(iter(received), _COLUMNS)
                received.clear()


def _row(
    path: str, headers: dict[str, str], body: bytes, arguments: argparse.Namespace
) -> tuple[dict[str, Any], int]:
    """Return what is printed of a request, and the status of the answer."""
    verified, status = None, arguments.status
    if arguments.secret is not None:
        try:
            verify(headers, body, arguments.secret)
            verified = True
        except InvalidSignature:
            verified, status = False, 403
    document = json_or_text(body.decode("utf-8", "replace"))
    found = {name.lower(): value for name, value in headers.items()}
    row = {"id": found.get("webhook-id"), "verified": verified, "path": path, "body": document}
    return row, status
