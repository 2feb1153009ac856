"""Keystone as one process of threads; it runs in Keystone's own environment.

`make DIRECTORY` makes a database with an administrator, and the keys of its tokens, once;
`serve DIRECTORY PORT` serves a copy of that.
"""

import getpass
import grp
import importlib
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

PASSWORD = "secret"
# Four rounds of bcrypt: a login is to take milliseconds.
CONFIGURATION = """
[DEFAULT]
log_file = {home}/keystone.log
[database]
connection = sqlite:///{home}/keystone.db
[token]
provider = fernet
[fernet_tokens]
key_repository = {home}/tokens
[fernet_receipts]
key_repository = {home}/tokens
[credential]
key_repository = {home}/credentials
[identity]
password_hash_rounds = 4
"""


def configure(home: Path) -> Path:
    """Write the configuration of a directory."""
    path = home / "keystone.conf"
    path.write_text(CONFIGURATION.format(home=home), encoding="utf-8")
    return path


def make(home: Path) -> None:
    """Make what a new cloud has: the user and project admin, the roles, the region."""
    home.mkdir(parents=True)
    manage = [str(Path(sys.executable).with_name("keystone-manage"))]
    manage += ["--config-file", str(configure(home))]
    group = grp.getgrgid(os.getgid()).gr_name
    owner = ["--keystone-user", getpass.getuser(), "--keystone-group", group]
    for words in (
        ["db_sync"],
        ["fernet_setup", *owner],
        ["credential_setup", *owner],
        ["bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", "RegionOne"],
    ):
        subprocess.run([*manage, *words], check=True)


App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_at_a_time(application: App) -> App:
    """Let one request at a time into Keystone.

    Two transactions that read and then write SQLite's file can't both go on: one of them fails at
    once, whatever its timeout is, and Keystone answers 500.
    """
    entered = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with entered:
            return list(application(environ, start_response))

    return answer


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread a request."""

    daemon_threads = True
    request_queue_size = 128


class Handler(WSGIRequestHandler):
    """Says nothing."""

    def log_message(self, *_: object) -> None:
        """Keystone has a log of its own."""


def serve(home: Path, port: int) -> None:
    """Serve until the process is ended."""
    os.environ["OS_KEYSTONE_CONFIG_FILES"] = str(configure(home))
    sys.argv = ["keystone"]  # it reads them
    application = importlib.import_module("keystone.wsgi.api").application
    served = one_at_a_time(application)
    make_server("127.0.0.1", port, served, Server, Handler).serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
