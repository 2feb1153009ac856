"""A pytest plugin for programs that use the SDK: a server in memory, and its clock.

It comes with `pip install 'zaqar-lite[server]'`, and pytest finds it by itself. The server is a
process of its own, started once a run; each test has a project of its own in it, without queues.
"""

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:  # pytest imports a plugin in every run, also in those that do not use it
    from zaqar_lite.client import AsyncClient, Client

_LISTENING = re.compile(r"listening on (http://[\w.:]+)")
_LONGEST_START = 60.0


class ZaqarClock:
    """The server's clock: it runs like any clock, and a test can move it forward."""

    def __init__(self, offset: Path) -> None:
        self._offset = offset
        self._milliseconds = 0

    def advance(self, seconds: float) -> None:
        """Move the clock forward by so many seconds: what is due by then is due now.

        Raises:
            ValueError: the seconds are negative.
        """
        if seconds < 0:
            message = f"time goes forwards only, not by {seconds:g} s"
            raise ValueError(message)
        self._milliseconds += round(seconds * 1000)
        # Replace the file in one step: the server would read an empty file as 0.
        new = self._offset.with_suffix(".new")
        new.write_text(str(self._milliseconds), encoding="ascii")
        new.replace(self._offset)


class ZaqarServer(NamedTuple):
    """The address of the server, and the project that belongs to one test."""

    url: str
    project: str

    def client(self) -> "Client":
        """Make a client of the test's project."""
        from zaqar_lite.client import Client  # noqa: PLC0415

        return Client(self.url, project=self.project)

    def async_client(self) -> "AsyncClient":
        """Make an async client of the test's project."""
        from zaqar_lite.client import AsyncClient  # noqa: PLC0415

        return AsyncClient(self.url, project=self.project)


class _Running(NamedTuple):
    url: str
    clock: ZaqarClock


@pytest.fixture(scope="session")
def _zaqar_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Running]:
    """Start the server's process, which serves all tests of the run."""
    place = tmp_path_factory.mktemp("zaqar")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ZAQAR_")
    }
    environment["ZAQAR_LITE_CLOCK_OFFSET_FILE"] = str(place / "offset")
    command = [sys.executable, "-m", "zaqar_lite", "serve", "--store", "memory://", "--port", "0"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield _Running(_address(process, place / "log"), ZaqarClock(place / "offset"))
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def zaqar_server(_zaqar_running: _Running) -> ZaqarServer:
    """A server with a store in memory, and a project without queues."""
    return ZaqarServer(_zaqar_running.url, f"test-{uuid.uuid4().hex}")


@pytest.fixture
def zaqar_clock(_zaqar_running: _Running) -> ZaqarClock:
    """The clock of `zaqar_server`: a test calls `advance` where it would have to sleep."""
    return _zaqar_running.clock


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the server listens; return its address.

    Raises:
        RuntimeError: the server ended, or did not listen within a minute; the text has its log.
    """
    until = time.monotonic() + _LONGEST_START
    while time.monotonic() < until:
        text = log.read_text(encoding="utf-8", errors="replace")
        if found := _LISTENING.search(text):
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.02)
    message = f"zaqar-lite serve did not start:\n{log.read_text(encoding='utf-8')}"
    raise RuntimeError(message)
