"""OpenStack Swift from PyPI: one node, run by swift_side/swift_node.py in Swift's environment."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from tests.services.environments import SWIFT
from tests.services.process import (
    Process,
    Service,
    answers,
    free_ports,
    make_data_directory,
    missing,
)

_SIDE = Path(__file__).with_name("swift_side")


@dataclass(frozen=True, kw_only=True)
class SwiftServer(Service):
    """A Swift proxy; `url` carries user and key, `auth_url` is where a token is had (v1)."""

    auth_url: str
    user: str
    key: str


def swift_from(url: str) -> SwiftServer:
    """Describe a Swift that somebody else runs: http://USER:KEY@HOST:PORT/auth/v1.0.

    A colon inside the user is written %3A; `swift+http` is accepted for `http`.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return SwiftServer(
        url=f"swift+{parts.scheme.removeprefix('swift+')}://{parts.netloc}{parts.path}",
        auth_url=f"{parts.scheme.removeprefix('swift+')}://{host}{parts.path}",
        user=unquote(parts.username or ""),
        key=unquote(parts.password or ""),
    )


def start_swift() -> SwiftServer:
    """Start a node; an expired object leaves listings in about 6 s."""
    python = SWIFT.program("python")
    data = make_data_directory("swift")
    _check_attributes(data)
    proxy, *backends = free_ports(4)
    node = Process(
        [
            *(python, str(_SIDE / "swift_node.py"), "--data", str(data / "node")),
            *("--port", str(proxy), "--backend-ports", *map(str, backends)),
        ],
        log=data / "log",
        env={**os.environ, "PYTHONPATH": str(_SIDE), "PYTHONWARNINGS": "ignore"},
    )
    user, key = "test:tester", "testing"
    return SwiftServer(
        url=f"swift+http://{quote(user)}:{key}@127.0.0.1:{proxy}/auth/v1.0",
        data=data,
        processes=(node,),
        ready=lambda: all(
            answers(f"http://127.0.0.1:{port}/healthcheck") for port in (*backends, proxy)
        ),
        auth_url=f"http://127.0.0.1:{proxy}/auth/v1.0",
        user=user,
        key=key,
    ).start()


def _check_attributes(data: Path) -> None:
    """Swift keeps an object's metadata in the extended attributes of its file."""
    probe = data / "probe"
    probe.touch()
    try:
        os.setxattr(probe, b"user.swift.metadata", b"x" * 1024)
    except OSError as exc:
        if exc.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENOSPC):
            raise
        missing(f"a file system with extended attributes at {data}", "set TMPDIR to one that has")
